"""What a run has cost so far, before Slurm's accounting knows: for plan, budget and status. Pure, light to import."""

from __future__ import annotations

from decimal import Decimal

from steelrail.config.prices import PriceRow, usd_per_gpu_hour
from steelrail.config.schema import Run
from steelrail.cost.balance import charge
from steelrail.units import micro_usd


def spent_so_far(run: Run, row: PriceRow, elapsed_seconds: float) -> int:
    """Return micro-dollars for ``elapsed_seconds`` of the run's whole allocation (all its segments together).

    GPUs x time x ``row``; a run without GPUs pays for its ranks' CPUs. An estimate: the bill takes Slurm's own seconds.
    """
    if run.shape.num_gpus:
        return charge(run.shape.num_gpus, elapsed_seconds, usd_per_gpu_hour(row))
    return charge(run.shape.world_size * run.slurm.cpus_per_rank, elapsed_seconds, Decimal(run.cost.cpu_usd_per_hour))


def over_budget(run: Run, row: PriceRow, elapsed_seconds: float) -> bool:
    """Return whether the run has reached ``cost.budget_usd``."""
    budget = run.cost.budget_usd
    return budget is not None and spent_so_far(run, row, elapsed_seconds) >= micro_usd(budget)
