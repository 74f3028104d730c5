"""Where ranks meet: device, process group, and what all of them must agree on before training. An edge."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from steelrail.clients import clock
from steelrail.clients.device import own_device
from steelrail.clients.meeting import connect, meet
from steelrail.clients.ranks import Master, RankPlace
from steelrail.config.schema import Run
from steelrail.errors import FabricError, NodeError, must

_COLLECTIVE_SECONDS = 1800.0
_FREE_SHARE = 0.9
_SKEW_ROUNDS = 3


class CulpritError(FabricError):
    """The links are unfit, and this host is why."""

    def __init__(self, message: str, culprit: str | None) -> None:
        super().__init__(message)
        self.culprit = culprit


def take_device(run: Run, place: RankPlace) -> torch.device:
    """Return this rank's device, made current. Raises ``NodeError`` unless it is there, ours alone, and free."""
    device = own_device(run, place, run.slurm.cpus_per_rank, NodeError)
    if device.type == "cuda":
        _require_free(device, place)
        _require_peers(run, place)
    return device


def join(place: RankPlace, at: Master, device: torch.device, patience_seconds: float) -> None:
    """Meet the other ranks and make the default process group. Raises ``NodeError`` that names who did not come."""
    connect(meet(place, at, patience_seconds, NodeError), "train", place, device, _COLLECTIVE_SECONDS)


def check_company(run: Run, place: RankPlace, device: torch.device) -> str:
    """Compare clocks, GPUs and leaf switches of all ranks; return what is worth recording.

    Raises ``NodeError`` for a clock or a GPU that is shared by two ranks, ``CulpritError`` for a refused downgrade.
    """
    _require_clocks(run, place)
    facts = _gather((place.host, _gpu_id(device), _leaf()))
    seen = [(host, gpu) for host, gpu, _ in facts if gpu]
    if len(set(seen)) < len(seen):
        twice = next(one for one in seen if seen.count(one) > 1)
        do = "see that every rank gets a GPU of its own"
        raise NodeError(must("GPU", "one rank's alone", f"shared by two ranks ({twice[1]})", twice[0], do))
    leaves = sorted({leaf for _, _, leaf in facts if leaf})
    if run.shape.rack == "required" and len(leaves) > 1:
        do = "wait longer (shape.rack_wait_minutes), or set shape.rack: preferred"
        raise CulpritError(
            must("rack", "one leaf switch", f"{len(leaves)} ({', '.join(leaves)})", "allocation", do), None
        )
    cpus = len(os.sched_getaffinity(0))
    return f"leaf switches: {', '.join(leaves) or 'unknown'}; CPUs of rank {place.rank}: {cpus}"


def _require_free(device: torch.device, place: RankPlace) -> None:
    free, total = torch.cuda.mem_get_info(device)
    if free < _FREE_SHARE * total:
        do = "end what else runs there, or exclude the node"
        where = f"{place.host} GPU {place.local_rank}"
        raise NodeError(must("GPU memory", "free", f"{free / total:.0%} free", where, do))


def _require_peers(run: Run, place: RankPlace) -> None:
    """GPUs on NVLink reach each other; one that cannot would send everything through the host."""
    if run.shape.gpu == "cpu":
        return
    others = [other for other in range(place.ranks_per_node) if other != place.local_rank]
    deaf = [other for other in others if not torch.cuda.can_device_access_peer(place.local_rank, other)]
    if deaf:
        do = "check NVLink and the fabric manager, or exclude the node"
        where = f"{place.host} GPU {place.local_rank}"
        raise NodeError(must("GPU", "able to reach its peers", f"cut off from {deaf[:8]}", where, do))


def _require_clocks(run: Run, place: RankPlace) -> None:
    """Compare every rank's clock with rank 0's, right after a barrier; the least of three rounds counts."""
    rounds = []
    for _ in range(_SKEW_ROUNDS):
        dist.barrier()
        rounds.append(_gather((place.host, clock.now())))
    for rank in range(place.world_size):
        skew = min(abs(one[rank][1] - one[0][1]) for one in rounds)
        if skew > run.node.max_clock_skew_seconds:
            limit = f"within {run.node.max_clock_skew_seconds} s of the first node's"
            do = "mend the node's time service"
            raise NodeError(must("clock", limit, f"{skew:.1f} s off", rounds[0][rank][0], do))


def _gather(value: tuple[Any, ...]) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _gpu_id(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def _leaf() -> str:
    """The leaf switch that Slurm's topology names for this node, if it has one: spine.leaf1.node1."""
    names = os.environ.get("SLURM_TOPOLOGY_ADDR", "").split(".")
    kinds = os.environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    return names[-2] if len(names) > 1 and kinds[-2:] == ["switch", "node"] else ""
