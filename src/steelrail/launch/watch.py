"""Which rank hangs: heartbeats in, a verdict out. Pure; the caller brings the clock.

Two kinds: a rank that is silent (stopped, or its host gone), and ranks that all live while none gets on, because one
of them never reached the collective the others wait in. The one furthest behind is named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from steelrail.artifacts.trainer import Heartbeat
from steelrail.launch.endings import Hang

# Heartbeats come every second; a rank that is this late is not merely on a busy host.
SILENT_SECONDS = 5.0
SLOW_STEPS = 3
# Loading libraries holds every thread of a rank, for long where many ranks load at once.
LOADING = ("start", "imports")
LOADING_SECONDS = 60.0
EXPORTING = "export"


@dataclass(frozen=True)
class Seen:
    """What is known of one rank. Times are the watcher's own clock, so that nodes' clocks do not matter."""

    beat: Heartbeat
    heard: float
    advanced: float


@dataclass(frozen=True)
class Watch:
    """State of the watcher. ``step_seconds`` are recent durations of a step, at most a few hundred."""

    started: float
    ranks: Mapping[int, Seen] = field(default_factory=dict)
    step: int | None = None
    stepped: float = 0.0
    step_seconds: tuple[float, ...] = ()


def observe(watch: Watch, beats: Mapping[int, Heartbeat], now: float) -> Watch:
    """Return the watcher's state after a look at the newest heartbeats (rank to heartbeat)."""
    ranks = {**watch.ranks, **{rank: _seen(watch.ranks.get(rank), beat, now) for rank, beat in beats.items()}}
    steps = [one.beat.step for one in ranks.values() if one.beat.step is not None]
    step = max(steps, default=None)
    if step is None or step == watch.step:
        return Watch(watch.started, ranks, watch.step, watch.stepped, watch.step_seconds)
    durations = watch.step_seconds
    if watch.step is not None and step > watch.step:
        durations = (*durations[-499:], (now - watch.stepped) / (step - watch.step))
    return Watch(watch.started, ranks, step, now, durations)


def find_hang(watch: Watch, world_size: int, now: float, hang_seconds: float, startup_seconds: float) -> Hang | None:
    """Return the rank that hangs, or none.

    ``hang_seconds`` bounds silence, and lack of progress once steps are made (or three times the p99 step, if longer);
    ``startup_seconds`` bounds lack of progress before the first step.
    """
    limit = max(hang_seconds, SLOW_STEPS * _p99(watch.step_seconds))
    missing = next((rank for rank in range(world_size) if rank not in watch.ranks), None)
    if missing is not None:
        late = now - watch.started
        return Hang(missing, "?", late, "starting", True) if late > max(limit, startup_seconds / 2) else None
    quiet = max(watch.ranks.items(), key=lambda item: now - item[1].heard)
    if now - quiet[1].heard > (limit if quiet[1].beat.doing not in LOADING else max(limit, LOADING_SECONDS)):
        hang = _hang(watch, quiet[0], now - quiet[1].heard, silent=True)
        return replace(hang, host_silent=_is_silent(watch, quiet[1].beat.host, world_size, now))
    idle = now - max(one.advanced for one in watch.ranks.values())
    if idle <= (limit if _in_steps(watch) else max(limit, startup_seconds)):
        return None
    ordered = sorted(watch.ranks.items(), key=lambda item: _place_in_order(item[1], now))
    rank, seen = ordered[0]
    hang = _hang(watch, rank, idle, silent=now - seen.heard > SILENT_SECONDS)
    alike = [other for other, one in ordered if _class(one, now) == _class(seen, now)]
    return replace(hang, stands_out=len(alike) < world_size or world_size == 1)


def _is_silent(watch: Watch, host: str, world_size: int, now: float) -> bool:
    """Whether all ranks of a host are silent, and others are not."""
    there = [now - one.heard > SILENT_SECONDS for one in watch.ranks.values() if one.beat.host == host]
    return all(there) and len(there) < world_size


def _class(seen: Seen, now: float) -> tuple[bool, int, bool]:
    """Least first: silent ranks, then the lowest step, then those that are not waiting for others."""
    step = -1 if seen.beat.step is None else seen.beat.step
    return (now - seen.heard <= SILENT_SECONDS, step, seen.beat.waits)


def _in_steps(watch: Watch) -> bool:
    """Whether lack of progress is judged by steps: not before the second one, nor while weights are exported."""
    return bool(watch.step_seconds) and all(one.beat.doing != EXPORTING for one in watch.ranks.values())


def _place_in_order(seen: Seen, now: float) -> tuple[tuple[bool, int, bool], float, int]:
    """Order within a class: the earliest last progress first."""
    return (_class(seen, now), seen.advanced, seen.beat.rank)


def _hang(watch: Watch, rank: int, seconds: float, silent: bool) -> Hang:
    beat = watch.ranks[rank].beat
    at = beat.doing if beat.step is None else f"{beat.doing}, step {beat.step}"
    at = f"{at}, in {beat.at}" if beat.at else at
    return Hang(rank, beat.host, seconds, at + _what_others_wait_in(watch, rank), silent)


def _what_others_wait_in(watch: Watch, culprit: int) -> str:
    """Name the collective that a culprit keeps others in, as the first of them says it."""
    waiting = [(rank, one.beat) for rank, one in sorted(watch.ranks.items()) if one.beat.waits and rank != culprit]
    return f"; rank {waiting[0][0]} waits in {waiting[0][1].collective or waiting[0][1].at}" if waiting else ""


def _seen(before: Seen | None, beat: Heartbeat, now: float) -> Seen:
    if before is None or before.beat.pid != beat.pid:
        return Seen(beat, now, now)
    heard = now if beat.time != before.beat.time else before.heard
    advanced = now if beat.progress != before.beat.progress else before.advanced
    return Seen(beat, heard, advanced)


def _p99(durations: tuple[float, ...]) -> float:
    if not durations:
        return 0.0
    return sorted(durations)[math.ceil(0.99 * len(durations)) - 1]
