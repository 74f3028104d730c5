"""What a run has cost so far, from its own ledger: good enough to stop at a budget, not a bill. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from steelrail.config.schema import Run
from steelrail.launch.ledger import Entry
from steelrail.units import MICRO_USD_PER_USD, SECONDS_PER_HOUR


def usd_per_second(run: Run, usd_per_gpu_hour: str | None) -> Decimal | None:
    """Return what the whole allocation costs a second, or none where no price is known."""
    if run.shape.num_gpus == 0:
        cpus = run.shape.world_size * run.slurm.cpus_per_rank
        return cpus * Decimal(run.cost.cpu_usd_per_hour) / SECONDS_PER_HOUR
    if usd_per_gpu_hour is None:
        return None
    return run.shape.num_gpus * Decimal(usd_per_gpu_hour) / SECONDS_PER_HOUR


def paid_seconds(entries: Sequence[Entry], now: float | None) -> float:
    """Return the seconds for which allocations were held: each segment from its start to its last attempt's end.

    ``now`` (Unix seconds) stands for the end of an attempt that runs; none: nothing runs.
    """
    spans: dict[tuple[str, int], tuple[float, float]] = {}
    for entry in entries:
        name = (entry.job_id, entry.segment)
        end = entry.ended or now or entry.started
        begun, last = spans.get(name, (entry.segment_started, end))
        spans[name] = (min(begun, entry.segment_started), max(last, end))
    return sum(last - begun for begun, last in spans.values())


def spent_micro_usd(entries: Sequence[Entry], now: float | None, rate: Decimal) -> int:
    """Return micro-dollars spent so far at ``rate`` dollars a second."""
    return int(Decimal(paid_seconds(entries, now)) * rate * MICRO_USD_PER_USD)
