"""Text of ``squeue`` in the formats that the door asks for. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Comment comes last: it is the one field that may hold the separator.
JOB_FORMAT = "%i|%T|%r|%j|%k"
STEP_FORMAT = "%i|%j"
_WORD = re.compile(r"(\w+)=(\S+)")


@dataclass(frozen=True)
class QueueRow:
    """One job in the queue."""

    job_id: str
    state: str
    reason: str
    name: str
    comment: str


@dataclass(frozen=True)
class Identity:
    """What a job of ours says about itself in its comment. ``folder`` is the digest of the run folder's path."""

    run: str
    stage: str
    key: str
    folder: str


def parse_jobs(text: str) -> tuple[QueueRow, ...]:
    """Return the rows of ``squeue --noheader --format=JOB_FORMAT``."""
    rows = (line.split("|", 4) for line in text.splitlines() if line.count("|") >= 4)
    return tuple(QueueRow(*(cell.strip() for cell in row)) for row in rows)


def parse_steps(text: str) -> dict[str, str]:
    """Return step name to step id (``15.0``) from ``squeue --steps --noheader --format=STEP_FORMAT``."""
    rows = (line.strip().split("|", 1) for line in text.splitlines() if "|" in line)
    return {name: step_id for step_id, name in rows}


def parse_identity(comment: str) -> Identity | None:
    """Return what the comment of a job of ours says, or none when it is somebody else's."""
    if not comment.startswith("steelrail "):
        return None
    words = dict(_WORD.findall(comment))
    if not {"run", "stage", "key"} <= words.keys():
        return None
    return Identity(words["run"], words["stage"], words["key"], words.get("folder", ""))
