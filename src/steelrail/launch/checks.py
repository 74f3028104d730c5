"""What is checked before anything is spent: partition, memory, initial weights. Only the last reads files: headers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from steelrail.config.schema import Run
from steelrail.errors import ClusterError, ConfigError, must
from steelrail.formats.sinfo import NodeOffer
from steelrail.train.plan import plan
from steelrail.train.weight_files import check_weights
from steelrail.units import show_bytes

# The plan's estimate was within this of what GPUs used: beyond it a run is refused, below it only warned about.
_PLAN_TOLERANCE = 1.1


def check_partition(run: Run, offers: Sequence[NodeOffer], partitions: Sequence[str]) -> list[str]:
    """Return warnings about a partition that can give the shape, perhaps later.

    Raises ``ClusterError`` for a partition that does not exist or can never give it, naming what it offers.
    """
    name = run.slurm.partition
    if not offers:
        do = f"set slurm.partition to one of {', '.join(partitions)}"
        raise ClusterError(must("partition", "one of this cluster's", name, "slurm.partition", do))
    allowed = [one for one in offers if one.name not in run.slurm.exclude]
    fitting = [one for one in allowed if fits(run, one)]
    if len(fitting) < run.held_nodes:
        do = "change shape, slurm.cpus_per_rank or slurm.partition"
        raise ClusterError(must(f"partition {name}", f"able to give {_wish(run)}", _offer(run, allowed), "sinfo", do))
    up = [one for one in fitting if one.up]
    if len(up) < run.held_nodes:
        down = ", ".join(one.name for one in fitting if not one.up)
        return [f"{len(up)} of {run.held_nodes} nodes are up in partition {name}; the job waits for more ({down})"]
    return []


def check_memory(run: Run) -> list[str]:
    """Return warnings about a run that may just not fit its GPUs. Raises ``ConfigError`` for one that cannot.

    On a CPU the plan knows no limit that holds, so nothing is said.
    """
    estimate = plan(run)
    if run.shape.device == "cpu" or estimate.fits:
        return []
    need, have = show_bytes(estimate.memory.total), show_bytes(estimate.memory_available)
    do = "set train.recompute: true, a smaller train.micro_batch_sequences, or more ranks"
    message = must("memory a rank", f"at most {have}", f"about {need}", "plan of train and shape", do)
    if estimate.memory.total > _PLAN_TOLERANCE * estimate.memory_available:
        raise ConfigError(message)
    return [message]


def check_init(run: Run) -> list[str]:
    """Return warnings about ``train.init_from``, one where this machine does not see it.

    Raises ``InputError`` when a tensor of the model is missing there, torn or another: found on the nodes, that would
    have cost their start.
    """
    if run.train.init_from is None:
        return []
    folder = Path(run.train.init_from)
    if not folder.is_dir():
        do = "plan where it is mounted, to have its tensors checked"
        return [must("train.init_from", "a folder here", "missing", folder, do)]
    return check_weights(run.train.model, folder)


def fits(run: Run, offer: NodeOffer) -> bool:
    """Return whether a node has the GPUs and CPUs that the run asks of each."""
    cpus = run.shape.ranks_per_node * run.slurm.cpus_per_rank
    return offer.count(run.slurm.gres) >= run.shape.gpus_per_node and offer.cpus >= cpus


def _wish(run: Run) -> str:
    cpus = run.shape.ranks_per_node * run.slurm.cpus_per_rank
    return f"{run.held_nodes} nodes with {run.shape.gpus_per_node} {run.slurm.gres} and {cpus} CPUs each"


def _offer(run: Run, offers: Sequence[NodeOffer]) -> str:
    kinds: dict[tuple[int, int], int] = {}
    for one in offers:
        kind = (one.count(run.slurm.gres), one.cpus)
        kinds[kind] = kinds.get(kind, 0) + 1
    said = (f"{count} nodes with {gpus} {run.slurm.gres} and {cpus} CPUs" for (gpus, cpus), count in kinds.items())
    return ", ".join(said) or "without a node"
