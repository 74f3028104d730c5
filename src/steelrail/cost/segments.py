"""Slurm's rows to billable segments, and attempts to the windows they had in them. Pure.

A *segment* is one of Slurm's own rows of a job: nodes that were ours from ``start`` to ``end``. A requeue, and a resize
after a lost node, both begin a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from steelrail.artifacts.train import Attempt
from steelrail.formats.sacct import SacctRow

Stage = Literal["shards", "fabric", "train"]
# Slurm writes whole seconds; the ranks' clocks and its own differ a little.
CLOCK_NOISE_SECONDS = 2.0


@dataclass(frozen=True)
class Segment:
    """One paid stretch of one job. Times are Unix seconds; ``gpus`` and ``cpus`` were allocated throughout."""

    stage: Stage
    job_id: str
    segment: int
    state: str
    nodes: tuple[str, ...]
    start: float
    end: float
    gpus: int
    cpus: int

    @property
    def seconds(self) -> float:
        """Length."""
        return self.end - self.start

    @property
    def units(self) -> int:
        """What is paid for by the hour: GPUs, or CPUs where there is no GPU."""
        return self.gpus or self.cpus


@dataclass(frozen=True)
class Window:
    """The part of a segment during which an attempt's ranks were (to be) running."""

    attempt: Attempt
    start: float
    end: float


def segments(
    jobs: Mapping[str, Sequence[SacctRow]], stages: Mapping[str, Stage], now: float | None = None
) -> tuple[Segment, ...]:
    """Return the billable segments of the jobs in ``stages`` (own rows, oldest first), in time order.

    Rows that never started are free. No two rows of one job are paid at once: the later begins where the earlier ended.
    Rows that are not over end ``now`` (Unix seconds); none: they are left out.
    """
    found = [one for job_id, stage in stages.items() for one in _of_job(stage, job_id, jobs.get(job_id, ()), now)]
    return tuple(sorted(found, key=lambda one: (one.start, one.job_id, one.segment)))


def _of_job(stage: Stage, job_id: str, rows: Sequence[SacctRow], now: float | None) -> list[Segment]:
    until = [replace(row, end=now) if row.end is None else row for row in rows]
    ran = [row for row in until if row.start is not None and row.end is not None]
    return _apart([_segment(stage, job_id, number, row) for number, row in enumerate(ran)])


def _segment(stage: Stage, job_id: str, number: int, row: SacctRow) -> Segment:
    start, end = row.start or 0.0, row.end or 0.0
    return Segment(stage, job_id, number, row.state, row.nodes, start, max(start, end), row.gpus, row.cpus)


def _apart(own: list[Segment]) -> list[Segment]:
    """Begin each segment no earlier than the one before it ended.

    The row after RESIZING carries the job's first start, not the resize's (seen on 22.05): both would be paid twice.
    """
    found: list[Segment] = []
    for one in own:
        start = max(one.start, found[-1].end) if found else one.start
        found.append(replace(one, start=start, end=max(start, one.end)))
    return found


def unbilled(attempts: Iterable[Attempt], paid: Sequence[Segment]) -> tuple[Attempt, ...]:
    """Return the attempts that began in none of the segments: their rows are late, or lost."""
    return tuple(one for one in attempts if home(one, paid) is None)


def home(attempt: Attempt, paid: Iterable[Segment]) -> Segment | None:
    """Return the segment in which an attempt began, or none. The newest that fits: one may follow another at once."""
    started = attempt.started + CLOCK_NOISE_SECONDS
    fits = [one for one in paid if one.job_id == attempt.job_id and one.start <= started]
    last = max(fits, key=lambda one: one.start, default=None)
    return last if last and attempt.started <= last.end + CLOCK_NOISE_SECONDS else None


def windows(segment: Segment, paid: Sequence[Segment], attempts: Iterable[Attempt]) -> tuple[Window, ...]:
    """Return the windows of attempts in ``segment``, in time order and apart from each other.

    An attempt belongs to the segment it began in; it goes on into the next only when the job kept its nodes (RESIZING).
    """
    own = sorted((one for one in attempts if _reaches(one, segment, paid)), key=lambda one: one.started)
    found: list[Window] = []
    for one in own:
        after = found[-1].end if found else segment.start
        start = min(max(one.started, after), segment.end)
        ended = segment.end if one.ended is None else one.ended
        found.append(Window(one, start, max(start, min(ended, segment.end))))
    return tuple(found)


def _reaches(attempt: Attempt, segment: Segment, paid: Sequence[Segment]) -> bool:
    begun = home(attempt, paid)
    if begun is None or begun.job_id != segment.job_id:
        return False
    if begun == segment:
        return True
    between = [one for one in paid if one.job_id == segment.job_id and begun.segment <= one.segment < segment.segment]
    kept = bool(between) and all(one.state == "RESIZING" for one in between)
    return kept and (attempt.ended is None or attempt.ended > segment.start)


def as_if_paid(attempts: Iterable[Attempt], gpus: int) -> tuple[Segment, ...]:
    """Return a segment an attempt, for pictures of a run that no Slurm accounted for. Never priced."""
    return tuple(
        Segment(
            "train", one.job_id, number, one.ending.value, one.nodes, one.started, one.ended or one.started, gpus, 0
        )
        for number, one in enumerate(sorted(attempts, key=lambda one: one.started))
    )
