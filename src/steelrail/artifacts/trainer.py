"""The contract between a trainer and whoever starts, watches and bills it.

A trainer's rank writes events (``artifacts.events``), keeps a heartbeat file, saves when it gets SIGUSR2 or SIGTERM,
and says by its exit code how it ended. Any trainer that keeps this gets the same gate, restarts and bill.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from steelrail.artifacts.files import on_results
from steelrail.errors import FullError, SteelrailError

EXIT_DONE = 0
EXIT_ERROR = 1
# Above any SteelrailError exit code and below 128 + signal, so that no two meanings share a number.
EXIT_SAVED = 75  # asked to save by a signal: state is on NVMe (and in the store where time allowed)
EXIT_ROLLED_BACK = 76  # met a bad step: the next attempt resumes before it, without some steps' updates
EXIT_FULL = 77  # the results folder's file system takes no more bytes, so that nothing else can be said there

# What all ranks of an attempt agree on and say together: no rank failed.
CLEAN_EXITS = (EXIT_DONE, EXIT_SAVED, EXIT_ROLLED_BACK)


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of a process of the trainer that ends with ``error``."""
    if isinstance(error, FullError):
        return EXIT_FULL
    return error.exit_code if isinstance(error, SteelrailError) else EXIT_ERROR


@dataclass(frozen=True)
class RunFolder:
    """Where one trained model (one key of one run) keeps its files, on the shared file system. Paths only."""

    root: Path  # results/<run>/train/<key>

    @property
    def frozen_run(self) -> Path:
        """Resolved configuration that every attempt uses (JSON)."""
        return self.root / "run.json"

    @property
    def shards_manifest(self) -> Path:
        """The data that this key is made of: what ``shards/manifest.json`` was when the job was submitted."""
        return self.root / "shards.json"

    @property
    def ledger(self) -> Path:
        """Events of the supervisor: starts and ends of attempts (JSON lines)."""
        return self.root / "ledger.jsonl"

    @property
    def stop_request(self) -> Path:
        """There when somebody asked for a clean stop."""
        return self.root / "stop.json"

    def events(self, attempt: int, rank: int) -> Path:
        """Events of one rank in one attempt (JSON lines)."""
        return self.root / "events" / f"attempt-{attempt:04d}-rank-{rank:05d}.jsonl"

    def metrics(self, attempt: int) -> Path:
        """Per-step metrics of one attempt, written by rank 0 (JSON lines, gathered to Parquet)."""
        return self.root / "metrics" / f"attempt-{attempt:04d}.jsonl"

    def heartbeat(self, rank: int) -> Path:
        """Heartbeat of one rank."""
        return self.root / "heartbeats" / f"rank-{rank:05d}.json"

    def error(self, attempt: int, rank: int) -> Path:
        """Why a rank of an attempt ended in error (JSON: type, message, step, trace)."""
        return self.root / "errors" / f"attempt-{attempt:04d}-rank-{rank:05d}.json"

    def log(self, attempt: int) -> Path:
        """Standard output and error of one attempt, each line marked with its rank."""
        return self.root / "logs" / f"attempt-{attempt:04d}.log"


@dataclass(frozen=True)
class Heartbeat:
    """A rank's sign of life. ``progress`` counts whatever moves (steps, files, bytes); ``doing`` says what it is at.

    ``at`` is the function in which its main thread is, where the trainer can tell; ``waits``: that is a collective, or
    the GPU is in one, which ``collective`` then names.
    """

    attempt: int
    rank: int
    host: str
    pid: int
    time: float
    progress: int
    step: int | None
    doing: str
    at: str = ""
    waits: bool = False
    collective: str = ""

    def write(self, path: Path) -> None:
        """Replace the heartbeat file. Not flushed to disk: only its age matters. Raises ``FullError``."""
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        with on_results(path):
            temporary.write_text(json.dumps(asdict(self)))
            temporary.replace(path)


def read_heartbeat(path: Path) -> Heartbeat | None:
    """Return a rank's last heartbeat, or none when it cannot be read now (not there yet, or being replaced on NFS)."""
    try:
        return Heartbeat(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
