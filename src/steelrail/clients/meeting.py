"""The door to the other ranks: the store where all meet, and the process group made there. Brings torch."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from steelrail.clients.ranks import Master, RankPlace
from steelrail.errors import SteelrailError, must


def meet(place: RankPlace, at: Master, seconds: float, absent: type[SteelrailError]) -> TCPStore:
    """Return the master's store once all ranks have been there. Raises ``absent`` naming who was not in time."""
    limit = timedelta(seconds=seconds)
    store = TCPStore(at.address, at.port, place.world_size, place.rank == 0, limit, wait_for_workers=False)
    store.set(f"here/{place.rank}", place.host)
    names = [f"here/{rank}" for rank in range(place.world_size)]
    try:
        store.wait(names, limit)
    except (dist.DistStoreError, RuntimeError) as error:
        missing = [rank for rank, name in enumerate(names) if not store.check([name])]
        nodes = sorted({rank // place.ranks_per_node for rank in missing})
        text = f"without ranks {missing[:16]} of nodes {nodes} (as the job numbers them)"
        do = "look at their lines of the log, or exclude those nodes"
        raise absent(must("the ranks", "complete", text, f"after {seconds:.0f} s", do)) from error
    return store


def connect(store: TCPStore, name: str, place: RankPlace, device: torch.device, seconds: float) -> None:
    """Make the default process group, its keys under ``name``; no collective of it waits longer than ``seconds``."""
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore(name, store),
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=seconds),
        device_id=device if device.type == "cuda" else None,
    )
