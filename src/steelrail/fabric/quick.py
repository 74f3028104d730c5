"""The check inside every training attempt: seconds long, on the process group that training will use."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

from steelrail import log
from steelrail.artifacts.fabric import FabricReport
from steelrail.clients.ranks import RankPlace
from steelrail.config.schema import Run
from steelrail.fabric.gather import gather_numbers, gather_records
from steelrail.fabric.health import check_device
from steelrail.fabric.measure import collective
from steelrail.fabric.probe import device_name, device_uuid
from steelrail.fabric.quick_verdict import QuickFact, QuickResult, quick_verdict
from steelrail.fabric.schedule import percentile, repeats_within
from steelrail.fabric.sizes import messages
from steelrail.fabric.timing import Clock, time_each

_log = log.logger(__name__)
_MATRIX_SIZE = 256
_REPEATS = 5
# On the CPU the best of them counts, and a busy core can spoil five in a row.
_CPU_REPEATS = 20
_MAX_CPU_BYTES = 1_000_000
# Shares of the time budget: what is left covers the matrix product and the first, slow message of each link.
_RING_SHARE, _GATHER_SHARE = 0.3, 0.2
_FACT = TypeAdapter(QuickFact)


def quick_check(
    run: Run, place: RankPlace, device: torch.device, baseline: FabricReport | None, clock: Clock
) -> QuickResult:
    """Check devices, the ring of nodes and one whole-world all-gather within about ``fabric.quick_seconds``.

    Every rank must call it, after the default process group is up, and all return the same result. ``clock`` counts
    seconds that never go back. ``baseline`` is the fabric stage's report: links are then held against it.
    """
    start = clock()
    health = check_device(device, _MATRIX_SIZE, _REPEATS, clock)
    size = _ring_bytes(run, device)
    received = _time_ring(run, place, device, size, clock)
    gathered = _time_gather(run, place, device, clock)
    mine = QuickFact(
        rank=place.rank,
        host=place.host,
        local_rank=place.local_rank,
        model=device_name(device),
        uuid=device_uuid(device),
        product=health.digest,
        receive_seconds=received,
        gather_seconds=gathered,
        seconds=clock() - start,
    )
    result = quick_verdict(gather_records(mine, _FACT, device), size, run, baseline)
    if result.uncovered and place.rank == 0:
        _log.warning("not on the fabric receipt, so this check alone decides: %s", ", ".join(result.uncovered))
    return result


def _ring_bytes(run: Run, device: torch.device) -> int:
    return min(run.fabric.pair_bytes, _MAX_CPU_BYTES) if device.type == "cpu" else run.fabric.pair_bytes


def _time_ring(run: Run, place: RankPlace, device: torch.device, size_bytes: int, clock: Clock) -> float | None:
    """Return the middle seconds of a message from the node before, while all nodes send to the next; none off the ring.

    On GPUs every local rank has its ring (one a rail), on the CPU the first rank of each node.
    """
    if place.num_nodes == 1:
        return None
    taking_part = device.type == "cuda" or place.local_rank == 0
    # A rank off the ring still takes part in what aligns the ranks.
    work = _shift(place, size_bytes, device) if taking_part else _rest
    seconds = _time_agreed(work, run.fabric.quick_seconds * _RING_SHARE, device, clock)
    return seconds if taking_part else None


def _time_gather(run: Run, place: RankPlace, device: torch.device, clock: Clock) -> float:
    """Return the middle seconds of an all-gather of one block's parameters (capped on the CPU)."""
    cap = _MAX_CPU_BYTES if device.type == "cpu" else None
    block = messages(run.train.model, run.train.precision, place.world_size, cap)[0]
    work = collective(block, device, place.world_size)
    return _time_agreed(work, run.fabric.quick_seconds * _GATHER_SHARE, device, clock)


def _time_agreed(work: Callable[[], object], budget_seconds: float, device: torch.device, clock: Clock) -> float:
    """Warm up, let all ranks agree on how many repeats fit the budget, and return the middle of their seconds.

    On the CPU the best of them: ranks share cores, and a wait for a core says nothing of the link.
    """
    tiny = torch.zeros(1, device=device)

    def align() -> object:
        return dist.all_reduce(tiny)

    align()
    work()
    once = float(gather_numbers(time_each(work, 1, device, clock, align), device).max())
    repeats = repeats_within(once, _CPU_REPEATS if device.type == "cpu" else _REPEATS, budget_seconds)
    return percentile(time_each(work, repeats, device, clock, align), 0 if device.type == "cpu" else 50)


def _shift(place: RankPlace, size_bytes: int, device: torch.device) -> Callable[[], None]:
    step, world_size = place.ranks_per_node, place.world_size
    after, before = (place.rank + step) % world_size, (place.rank - step) % world_size
    sent = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
    received = torch.empty_like(sent)

    def work() -> None:
        both = [dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, received, before)]
        for request in dist.batch_isend_irecv(both):
            request.wait()

    return work


def _rest() -> None:
    """Off the ring."""
