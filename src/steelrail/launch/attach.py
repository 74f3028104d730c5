"""Is there a job of this run already? Attach to it, or refuse beside it; never two. Pure but for its door."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from steelrail.errors import BusyError, must
from steelrail.formats.squeue import Identity, QueueRow, parse_identity
from steelrail.launch.request import Stage, folder_digest, job_name


class Queue(Protocol):
    """What is needed of Slurm here."""

    def queue(self, user: str, name: str) -> Sequence[QueueRow]:
        """Return the jobs of a user by name."""


def live_job(queue: Queue, user: str, run_name: str, stage: Stage, key: str, folder: Path) -> str | None:
    """Return the id of the live job of this run, stage and key, or none.

    Raises ``BusyError`` when a job of the run lives under another key or for another folder: both would write one place
    in the store.
    """
    rows = queue.queue(user, job_name(run_name, stage))
    ours = [(row, identity) for row in rows if (identity := parse_identity(row.comment)) is not None]
    for row, identity in ours:
        _refuse_stranger(row, identity, run_name, key, folder)
    if len(ours) > 1:
        ids = ", ".join(row.job_id for row, _ in ours)
        raise BusyError(must(f"jobs of run {run_name}", "one", f"{len(ours)} ({ids})", "squeue", "scancel all but one"))
    return ours[0][0].job_id if ours else None


def _refuse_stranger(row: QueueRow, identity: Identity, run_name: str, key: str, folder: Path) -> None:
    where = f"job {row.job_id}, {row.state.lower()}"
    if identity.folder and identity.folder != folder_digest(folder):
        do = f"wait for it, scancel {row.job_id}, or give this run another name"
        raise BusyError(must(f"run {run_name}", "one of its name", "alive for another results folder", where, do))
    if identity.key != key:
        do = f"wait for it, or stop it: scancel {row.job_id}"
        raise BusyError(must(f"live job of run {run_name}", f"of key {key}", f"of key {identity.key}", where, do))
