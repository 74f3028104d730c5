"""Reading and writing the small files between stages: written last and whole, read strictly."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from steelrail.config.schema import Run
from steelrail.errors import InputError, must


class Artifact(BaseModel):
    """Base of every artifact: frozen and closed."""

    model_config = ConfigDict(frozen=True, extra="forbid")


A = TypeVar("A", bound=Artifact)


class Provenance(Artifact):
    """What made an artifact: enough to make it again."""

    stage: str
    key: str
    command: tuple[str, ...]
    started: float
    ended: float
    host: str
    user: str
    commit: str | None
    dirty: bool
    versions: dict[str, str]
    inputs: dict[str, str]
    config_digest: str


def results_folder(run: Run) -> Path:
    """Return ``results/<run>``, where everything of a run lies; relative where the run file is (``results``)."""
    return Path(run.results) / run.name


def write_artifact(path: Path, artifact: Artifact) -> None:
    """Write an artifact as indented JSON, whole or not at all."""
    write_whole(path, (artifact.model_dump_json(indent=1) + "\n").encode())


def write_whole(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path``: temporary name, flush, rename, so that a reader sees all of it or the old file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_artifact(path: Path, kind: type[A]) -> A:
    """Return the artifact in ``path``. Raises ``InputError`` when it is missing, torn or of another version."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise InputError(must(kind.__name__, "there", "missing", path, "run the stage that makes it")) from error
    except (ValidationError, json.JSONDecodeError, UnicodeDecodeError) as error:
        fault = " ".join(str(error).split())[:200]
        raise InputError(
            must(kind.__name__, "valid", f"not ({fault})", path, "remove it and rerun its stage")
        ) from error
