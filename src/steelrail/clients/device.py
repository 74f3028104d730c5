"""The door to the device that a rank computes on. Brings torch."""

from __future__ import annotations

import torch

from steelrail.clients.ranks import RankPlace
from steelrail.config.schema import Run
from steelrail.errors import SteelrailError, must


def own_device(run: Run, place: RankPlace, cpu_threads: int, missing: type[SteelrailError]) -> torch.device:
    """Return this rank's device, made current. Raises ``missing`` when the node has fewer GPUs than ranks.

    All ranks of a node are forked from one process, so that each sees all its GPUs.
    """
    if run.shape.device == "cpu":
        torch.set_num_threads(cpu_threads)
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if count < place.ranks_per_node:
        do = "check the driver, the node's GRES and slurm.gres"
        raise missing(must("GPUs that torch sees", f"at least {place.ranks_per_node}", count, place.host, do))
    device = torch.device("cuda", place.local_rank)
    torch.cuda.set_device(device)
    return device
