"""What is done about nodes that the fabric stage finds unfit: others take their place, where there are others. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from decimal import Decimal

from steelrail.artifacts.fabric import FabricReport
from steelrail.config.schema import Run
from steelrail.formats.hostlist import compress
from steelrail.formats.sinfo import NodeOffer
from steelrail.launch.checks import fits
from steelrail.units import micro_usd, show_seconds, show_usd


def fitting_others(run: Run, offers: Sequence[NodeOffer], unfit: Collection[str]) -> tuple[str, ...]:
    """Return the nodes of the partition that are up and could carry the run, but for the unfit and those never used."""
    out = {*run.slurm.exclude, *unfit}
    return tuple(one.name for one in offers if one.up and one.name not in out and fits(run, one))


def leaving_out(run: Run, hosts: Collection[str]) -> Run:
    """Return the run with more nodes never to be used."""
    exclude = tuple(dict.fromkeys((*run.slurm.exclude, *hosts)))
    return run.model_copy(update={"slurm": run.slurm.model_copy(update={"exclude": exclude})})


def say_replaced(run: Run, report: FabricReport, others: Sequence[str], usd_per_second: Decimal | None) -> str:
    """Return what is left out, what it costs, and what remains. Why was said with the findings."""
    return (
        f"leaving out {', '.join(report.exclude)}, which job {report.job_id} found unfit, here and in training: "
        f"submitting the fabric job once more, for {run.shape.nodes} of {compress(others)} ({_spares(run, others)}). "
        f"It costs at most {_cost(run, usd_per_second)}; the first one measured for {_seconds(report)}{_wait(run)}"
    )


def say_too_few(run: Run, report: FabricReport, others: Sequence[str]) -> str:
    """Return why unfit nodes are not replaced."""
    left = f"{len(others)} ({compress(others)})" if others else "none"
    return (
        f"not replacing {', '.join(report.exclude)}: {run.shape.nodes} nodes are needed, and of the others in "
        f"partition {run.slurm.partition} {left} are up and fit the shape"
    )


def _spares(run: Run, others: Sequence[str]) -> str:
    spares = len(others) - run.shape.nodes
    return f"{spares} spare" if spares else "no spare is left for a node that is lost"


def _cost(run: Run, usd_per_second: Decimal | None) -> str:
    seconds = run.slurm.fabric_minutes * 60
    hours = f"{run.shape.num_gpus * seconds / 3600:.2f} GPU-hours" if run.shape.num_gpus else show_seconds(seconds)
    if usd_per_second is None:
        return hours
    return f"{hours}, {show_usd(micro_usd(usd_per_second * seconds))}"


def _seconds(report: FabricReport) -> str:
    return show_seconds(report.measured - report.provenance.started)


def _wait(run: Run) -> str:
    if run.shape.rack == "any" or run.shape.nodes == 1:
        return ""
    return f". Slurm may wait {run.shape.rack_wait_minutes} min for one leaf switch first"
