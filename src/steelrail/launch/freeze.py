"""What runs is frozen at submission: code, resolved configuration, price, environment. Kept with the run.

Every attempt of a job uses what was frozen when the job was submitted, whatever happens to the working tree meanwhile.
A later submission of the same key (after an error was mended) freezes anew; the old code stays beside it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from steelrail.artifacts.files import results_folder, write_whole
from steelrail.artifacts.reading import parsed
from steelrail.artifacts.trainer import RunFolder
from steelrail.clients.disk import private_folder
from steelrail.config.keys import digest
from steelrail.config.schema import Run
from steelrail.config.words import why
from steelrail.errors import ClusterError, InputError, must

_KEPT = (".py", ".j2", ".typed", ".json")


@dataclass(frozen=True)
class Frozen:
    """What a job was submitted with. ``code`` is the folder to put on PYTHONPATH; ``price`` is dollars a GPU-hour."""

    code: str
    code_digest: str
    config_digest: str
    environment_digest: str
    usd_per_gpu_hour: str | None


def run_folder(run: Run, key: str) -> RunFolder:
    """Return where training state of one key lives, as an absolute path."""
    return RunFolder(results_folder(run).absolute() / "train" / key)


def freeze(folder: RunFolder, run: Run, usd_per_gpu_hour: str | None) -> Frozen:
    """Freeze the present code, ``run`` and environment into the run folder and return what was frozen."""
    require_private(folder.root)
    run = with_absolute_paths(run)
    code_digest = freeze_code(folder.root / "code")
    environment = json.dumps(installed(), indent=1, sort_keys=True)
    write_whole(folder.root / "code" / code_digest / "environment.json", environment.encode())
    write_whole(folder.frozen_run, (run.model_dump_json(indent=1) + "\n").encode())
    frozen = Frozen(
        code=str(folder.root / "code" / code_digest),
        code_digest=code_digest,
        config_digest=digest(run.model_dump(mode="json")),
        environment_digest=hashlib.sha256(environment.encode()).hexdigest()[:12],
        usd_per_gpu_hour=usd_per_gpu_hour,
    )
    write_whole(_frozen_file(folder), json.dumps(frozen.__dict__, indent=1).encode())
    return frozen


def with_absolute_paths(run: Run) -> Run:
    """Return the run with paths that mean the same wherever a job stands."""
    init, tokenizer = run.train.init_from, run.shards.tokenizer
    update = {
        "results": str(Path(run.results).absolute()),
        "train": run.train.model_copy(update={"init_from": init and str(Path(init).absolute())}),
        "shards": run.shards.model_copy(update={"tokenizer": str(Path(tokenizer).absolute())}),
    }
    return run.model_copy(update=update)


def read_frozen(folder: RunFolder) -> tuple[Run, Frozen]:
    """Return what the newest job of this folder was submitted with. Raises ``InputError`` when it cannot be read."""
    try:
        frozen = parsed(Frozen, _frozen_file(folder).read_bytes())
        return Run.model_validate_json(folder.frozen_run.read_bytes()), frozen
    except (OSError, ValueError) as error:
        raise InputError(
            must("frozen run", "readable", f"not ({why(error)})", folder.root, "submit the run again")
        ) from error


def installed() -> dict[str, str]:
    """Return name and version of every installed package."""
    packages = importlib.metadata.distributions()
    return {name.lower(): one.version for one in packages if (name := one.metadata["Name"])}


def require_private(folder: Path) -> None:
    """Make a folder of the run, closed to others. Raises ``ClusterError`` for one that others may write in."""
    for path in (folder.parent.parent, folder.parent, folder):
        private_folder(path)
        mode = path.stat().st_mode
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            shown = oct(stat.S_IMODE(mode))
            raise ClusterError(must("run folder", "writable by its owner alone", shown, path, "chmod 0700 it"))


def package_folder() -> Path:
    """Return the folder of the package that runs now."""
    return Path(__file__).parent.parent


def freeze_code(target: Path) -> str:
    """Copy the present code to ``target/<digest>/steelrail`` unless it is there; return the digest."""
    source = package_folder()
    files = sorted(path for path in source.rglob("*") if path.suffix in _KEPT and path.is_file())
    code_digest = _digest(source, files)
    folder = target / code_digest / "steelrail"
    if not folder.exists():
        _copy(source, files, folder)
    return code_digest


def _digest(source: Path, files: list[Path]) -> str:
    state = hashlib.sha256()
    for path in files:
        name = str(path.relative_to(source)).encode()
        data = path.read_bytes()
        state.update(b"%d %d " % (len(name), len(data)) + name + data)
    return state.hexdigest()[:12]


def _copy(source: Path, files: list[Path], folder: Path) -> None:
    """Copy whole or not at all: a half-made snapshot would be taken for good by its name."""
    temporary = folder.parent / f".steelrail.{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    for path in files:
        copy = temporary / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    temporary.rename(folder)


def _frozen_file(folder: RunFolder) -> Path:
    return folder.root / "frozen.json"
