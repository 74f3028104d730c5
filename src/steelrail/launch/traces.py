"""What the ranks of an attempt left behind on the shared file system: events, errors, heartbeats. Reads only."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from steelrail.artifacts.events import Event, parse_event, read_events
from steelrail.artifacts.trainer import Heartbeat, RunFolder, read_heartbeat
from steelrail.launch.endings import RankFault

_TAIL_BYTES = 64 * 1024
SAVED_ON_TERM = "SIGTERM"


@dataclass(frozen=True)
class Steps:
    """What an attempt did, by rank 0's events; none where there was nothing. ``durable``: its newest checkpoint."""

    resumed_from: int | None
    first_step: int | None
    last_step: int | None
    durable: int | None
    last_event: float | None


def numbers(folder: RunFolder) -> list[int]:
    """Return the attempts that left events, a ledger or not: one that took such a number would be judged by them."""
    names = (path.name.split("-")[1] for path in folder.events(0, 0).parent.glob("attempt-*-rank-*.jsonl"))
    return [int(name) for name in names if name.isdigit()]


def steps_of(folder: RunFolder, attempt: int) -> Steps:
    """Return what rank 0 of an attempt did."""
    events = rank_events(folder, attempt, 0)
    steps = [event.data["step"] for event in events if event.kind == "step"]
    restored = [event.data.get("step") for event in events if event.kind == "restore"]
    durable = [event.data["step"] for event in events if event.kind == "durable"]
    return Steps(
        resumed_from=restored[-1] if restored else None,
        first_step=min(steps, default=None),
        last_step=max(steps, default=None),
        durable=max(durable, default=None),
        last_event=events[-1].time if events else None,
    )


def rank_events(folder: RunFolder, attempt: int, rank: int) -> list[Event]:
    """Return the events of one rank in one attempt; none when it never wrote any."""
    path = folder.events(attempt, rank)
    return list(read_events(path)) if path.exists() else []


def first_events(folder: RunFolder, attempt: int) -> list[Event]:
    """Return the events of rank 0 up to its first step, that one included: the start of an attempt."""
    found: list[Event] = []
    path = folder.events(attempt, 0)
    for event in read_events(path) if path.exists() else ():
        found.append(event)
        if event.kind == "step":
            break
    return found


def newest_steps(folder: RunFolder, attempt: int, count: int) -> list[Event]:
    """Return the last ``step`` events of rank 0, at most ``count``, from the end of its file: long runs have many."""
    return [event for event in _tail(folder.events(attempt, 0)) if event.kind == "step"][-count:]


def upload_seconds(folder: RunFolder, attempt: int) -> list[float]:
    """Return what the newest saves of an attempt took from NVMe to the store, from the end of rank 0's file."""
    stored = (event for event in _tail(folder.events(attempt, 0)) if event.kind == "durable")
    return [float(event.data["seconds"]) for event in stored if event.data["where"] == "store"]


def _tail(path: Path) -> list[Event]:
    """The last events of a file: a day of many ranks is gigabytes, and their ends are wanted while nodes are paid."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        lines = file.read(_TAIL_BYTES).split(b"\n")
    # The first line may be cut by where we began, the last by a write that is under way.
    whole = lines[1:-1] if size > _TAIL_BYTES else lines[:-1]
    return [parse_event(line, path) for line in whole]


def _end_of(folder: RunFolder, attempt: int, rank: int) -> Event | None:
    ends = [event for event in _tail(folder.events(attempt, rank)) if event.kind == "end"]
    return ends[-1] if ends else None


def newest_durable(folder: RunFolder, before_attempt: int) -> int:
    """Return the newest durable step of all attempts before one; -1 when there is none.

    What an attempt rolled back is gone on purpose, whichever attempt saved it; and older saves that only NVMe had were
    swept there for newer ones that are gone now.
    """
    found: set[tuple[int, str]] = set()
    for attempt in range(1, before_attempt):
        events = rank_events(folder, attempt, 0)
        found |= {(event.data["step"], event.data["where"]) for event in events if event.kind == "durable"}
        # Not by the order of events: what was saved before may become durable after.
        bounds = [event.data["at_most"] for event in events if event.kind == "rolled_back"]
        if bounds:
            found = {(step, where) for step, where in found if step <= min(bounds) and where == "store"}
    return max((step for step, _ in found), default=-1)


def rolled_back(folder: RunFolder, attempt: int) -> str | None:
    """Return for which bad step an attempt rolled back, in words; none when it did not."""
    found = [event for event in _tail(folder.events(attempt, 0)) if event.kind == "rolled_back"]
    return str(found[-1].data["why"]) if found else None


def newest_step(folder: RunFolder, before_attempt: int) -> int | None:
    """Return the last step of the attempts before one; none when no step was ever made."""
    found = (steps_of(folder, attempt).last_step for attempt in range(1, before_attempt))
    return max((step for step in found if step is not None), default=None)


def exits(folder: RunFolder, attempt: int, world_size: int) -> dict[int, int]:
    """Return the exit codes that ranks announced."""
    ends = {rank: _end_of(folder, attempt, rank) for rank in range(world_size)}
    return {rank: int(end.data["exit_code"]) for rank, end in ends.items() if end is not None}


def lived(folder: RunFolder, attempt: int, world_size: int) -> bool:
    """Return whether any rank came as far as its own first word."""
    return any(folder.events(attempt, rank).exists() for rank in range(world_size))


def all_terminated(folder: RunFolder, attempt: int, world_size: int) -> bool:
    """Return whether TERM came to every rank: within a preemption's grace Slurm sends it to ranks, not to us."""
    ends = [_end_of(folder, attempt, rank) for rank in range(world_size)]
    return all(end is not None and SAVED_ON_TERM in str(end.data["reason"]) for end in ends)


def faults(folder: RunFolder, attempt: int, world_size: int) -> list[RankFault]:
    """Return what ranks wrote before they ended in error."""
    found = []
    for rank in range(world_size):
        try:
            found.append(RankFault(**json.loads(folder.error(attempt, rank).read_text())))
        except (OSError, ValueError, TypeError):
            continue
    return found


def heartbeats(folder: RunFolder, attempt: int, world_size: int) -> dict[int, Heartbeat]:
    """Return the newest heartbeats of an attempt; those of earlier attempts are left out."""
    beats = ((rank, read_heartbeat(folder.heartbeat(rank))) for rank in range(world_size))
    return {rank: beat for rank, beat in beats if beat is not None and beat.attempt == attempt}
