"""Reading and writing the small files between stages: written last and whole, read strictly."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict

from steelrail.artifacts.reading import folder_error, reading
from steelrail.config.schema import Run
from steelrail.errors import ConfigError, FullError, InputError, must

_FULL = (errno.ENOSPC, errno.EDQUOT)
_TRIAL_BYTES = 4096


class Artifact(BaseModel):
    """Base of every artifact: frozen, closed. ``CALLED`` and ``COMMAND``: its name in messages, and what makes it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    CALLED: ClassVar[str] = ""
    COMMAND: ClassVar[str] = ""


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


def require_results_place(run: Run) -> None:
    """Raise ``ConfigError`` when something on the way to the run's results folder is a file. Makes nothing."""
    folder = results_folder(run).absolute()
    there = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
    if not there.is_dir():
        do = "name another place in results:, or move that file away"
        raise ConfigError(must("results folder", "a folder", "not one", there, do))


@contextlib.contextmanager
def on_results(path: Path) -> Iterator[None]:
    """Turn what a full file system (or a spent quota) says of ``path``, in a results folder, into ``FullError``.

    A folder where a file shall be written or read is ``InputError``.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, IsADirectoryError):
            raise folder_error("file of this path", error.filename2 or error.filename or path) from error
        if error.errno not in _FULL:
            raise
        raise full_error(path) from error


def full_error(path: Path) -> FullError:
    """Return the one error of a results folder whose file system takes no more bytes."""
    do = "free space there, or have the quota raised, and run the same command again"
    return FullError(must("file system of the results folder", "able to take more bytes", "full", path, do))


def takes_bytes(folder: Path) -> bool:
    """Return whether the file system of ``folder`` takes a small file; no when it is full or the quota is spent."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(b"\0" * _TRIAL_BYTES)
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno not in _FULL
    return True


def write_artifact(path: Path, artifact: Artifact) -> None:
    """Write an artifact as indented JSON, whole or not at all."""
    write_whole(path, (artifact.model_dump_json(indent=1) + "\n").encode())


def write_whole(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` of a results folder, all of it or nothing. Raises ``FullError``."""
    with on_results(path):
        put_whole(path, data)


def put_whole(path: Path, data: bytes) -> None:
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


def append_line(path: Path, line: bytes) -> None:
    """Append a line (without its end) to a file of this user. One small write: jobs on many nodes may do it at once.

    Raises ``FullError``; what a full file system took of the line is then a line that readers leave out.
    """
    with on_results(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            # What a killed writer left without its end must not be joined to this line.
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            whole = b"\n" * torn + line + b"\n"
            if os.write(descriptor, whole) < len(whole):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_artifact(path: Path, kind: type[A]) -> A:
    """Return the artifact in ``path``. Raises ``InputError`` when it is missing, torn or of another version."""
    what, command = kind.CALLED or kind.__name__, kind.COMMAND or "the stage that makes it"
    if not path.exists():
        raise InputError(must(what, "there", "missing", path, f"run {command}"))
    with reading(what, path, f"remove it and run {command} again"):
        return kind.model_validate_json(path.read_bytes())
