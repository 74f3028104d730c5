"""What made an artifact: host, user, commit, versions, command. Looks at this process and its code."""

from __future__ import annotations

import getpass
import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path

from steelrail.artifacts.files import Provenance
from steelrail.clients import clock
from steelrail.config import keys
from steelrail.config.schema import Run

PACKAGES = ("steelrail", "torch", "numpy", "pyarrow", "tokenizers", "tiktoken", "boto3")


def provenance(stage: str, key: str, run: Run, inputs: dict[str, str], started: float) -> Provenance:
    """Return the provenance of what ``stage`` made between ``started`` (Unix seconds) and now.

    ``inputs`` maps a name of each input to its digest.
    """
    commit, dirty = code_version(Path(__file__).parents[1])
    return Provenance(
        stage=stage,
        key=key,
        command=tuple(sys.argv),
        started=started,
        ended=clock.now(),
        host=socket.gethostname(),
        user=_user(),
        commit=commit,
        dirty=dirty,
        versions=versions(),
        inputs=inputs,
        config_digest=keys.digest(run.model_dump(mode="json")),
    )


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that shape results; none is imported."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def code_version(folder: Path) -> tuple[str | None, bool]:
    """Return the commit that holds ``folder`` and whether it differs from it; none where git does not track it.

    An environment inside somebody else's repository is not that repository's code, hence the question for one file.
    """
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None, False
    commit = _git(folder, "rev-parse", "HEAD")
    return commit, bool(_git(folder, "status", "--porcelain", "--", "."))


def _git(folder: Path, *words: str) -> str | None:
    """Return what git prints, or none when it fails or is missing."""
    # Jobs run as another user than the owner of the code; git would refuse that repository, and we only read it.
    command = ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", str(folder), *words]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no entry in the password file, as in some containers
        return str(os.getuid())
