"""One driver per run: a file lock that ends with its holder, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from steelrail.artifacts.files import on_results
from steelrail.clients import clock
from steelrail.clients.holder import this_process
from steelrail.errors import BusyError, must

_TRIES, _PAUSE_SECONDS = 10, 0.05


@contextlib.contextmanager
def only_driver(folder: Path, run_name: str) -> Iterator[None]:
    """Hold the lock of ``results/<run>`` for the block. Raises ``BusyError`` that names a living holder.

    The kernel gives the lock back when its holder dies, so a dead holder's lock does not count.
    """
    path = folder / "driver.lock"
    # Unbuffered: what a full file system does not take must not be tried again when the file is closed.
    with path.open("ab", buffering=0) as file:
        if not _taken(file):
            raise BusyError(_held(run_name, path))
        with on_results(path):
            file.truncate(0)
            file.write(json.dumps({"holder": this_process().text(), "since": clock.now()}).encode())
        yield


def _taken(file: IO[bytes]) -> bool:
    """Take the lock; whoever only asks who holds it (``holder``) has it for a moment."""
    for _ in range(_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        clock.sleep(_PAUSE_SECONDS)
    return False


def holder(folder: Path) -> str | None:
    """Return who drives a run now, or none."""
    path = folder / "driver.lock"
    try:
        with path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _named(path)
    except OSError:
        return None
    return None


def _held(run_name: str, path: Path) -> str:
    do = "wait for it, or end it (its job in Slurm goes on)"
    return must(f"run {run_name}", "driven by one process", f"driven by {_named(path)}", path, do)


def _named(path: Path) -> str:
    try:
        host, pid, _ = json.loads(path.read_text())["holder"].rsplit(":", 2)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # no holder of ours wrote this
        return "another process"
    return f"process {pid} on {host}"
