"""What a run has cost so far: Slurm's segments as the bill will have them, the ledger's where no row tells. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from steelrail.config.schema import Run
from steelrail.cost.balance import Rates
from steelrail.cost.segments import CLOCK_NOISE_SECONDS, Segment
from steelrail.cost.spend import spent
from steelrail.launch.ledger import Entry
from steelrail.units import SECONDS_PER_HOUR


def usd_per_second(run: Run, usd_per_gpu_hour: str | None) -> Decimal | None:
    """Return what the training job's nodes cost a second, or none where no price is known."""
    if run.held_gpus == 0:
        return num_cpus(run) * Decimal(run.cost.cpu_usd_per_hour) / SECONDS_PER_HOUR
    if usd_per_gpu_hour is None:
        return None
    return run.held_gpus * Decimal(usd_per_gpu_hour) / SECONDS_PER_HOUR


def num_cpus(run: Run) -> int:
    """Return the CPUs asked for: what is paid for where there are no GPUs."""
    return run.held_nodes * run.shape.ranks_per_node * run.slurm.cpus_per_rank


def ledger_segments(run: Run, entries: Sequence[Entry], now: float | None) -> tuple[Segment, ...]:
    """Return the segments of the training job by its own ledger: each from its start to its last attempt's end.

    ``now`` (Unix seconds) stands for the end of an attempt that runs; none: nothing runs.
    """
    found: dict[tuple[str, int], Segment] = {}
    for entry in entries:
        name = (entry.job_id, entry.segment)
        end = max(entry.segment_started, entry.ended or now or entry.started)
        before = found.get(name)
        start = min(before.start, entry.segment_started) if before else entry.segment_started
        last = max(before.end, end) if before else end
        found[name] = Segment("train", *name, "", entry.nodes, start, last, run.held_gpus, num_cpus(run))
    return tuple(found.values())


def with_late(billed: Sequence[Segment], own: Sequence[Segment]) -> tuple[Segment, ...]:
    """Return Slurm's segments and, of the ledger's ``own``, those that no row tells of: rows come seconds late."""
    return (*billed, *(one for one in own if not any(_told(row, one) for row in billed)))


def _told(row: Segment, own: Segment) -> bool:
    early, late = own.start - CLOCK_NOISE_SECONDS, own.start + CLOCK_NOISE_SECONDS
    return row.job_id == own.job_id and row.start <= late and row.end >= early


def spent_micro_usd(run: Run, paid: Sequence[Segment], usd_per_gpu_hour: str | None) -> int | None:
    """Return micro-dollars of segments at a run's rates, or none where GPUs are paid for and their price is unknown."""
    if usd_per_gpu_hour is None and any(one.gpus for one in paid):
        return None
    return spent(paid, Rates(Decimal(usd_per_gpu_hour or 0), Decimal(run.cost.cpu_usd_per_hour)))
