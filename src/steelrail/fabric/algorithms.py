"""Which algorithm and transport stood behind a measurement, as NCCL's log says. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from steelrail.artifacts.fabric import Measurement
from steelrail.formats.nccl import NcclLog

_NAMES = {"all_gather": "AllGather", "reduce_scatter": "ReduceScatter", "all_reduce": "AllReduce"}


def name_algorithms(measured: Iterable[Measurement], nccl: NcclLog) -> tuple[Measurement, ...]:
    """Return the measurements with what NCCL chose for them (``RING SIMPLE``) and how ranks are linked."""
    ways = ", ".join(nccl.transports)
    return tuple(
        one.model_copy(
            update={"algorithm": _algorithm(one, nccl), "library": f"{one.library} ({ways})" if ways else one.library}
        )
        for one in measured
    )


def _algorithm(one: Measurement, nccl: NcclLog) -> str:
    # NCCL counts an all-gather's and a reduce-scatter's bytes per rank in some releases, over all in others.
    sizes = {one.size_bytes, one.size_bytes // len(one.ranks)}
    choices = [made for made in nccl.choices if made.collective == _NAMES[one.collective] and made.size_bytes in sizes]
    return f"{choices[-1].algorithm} {choices[-1].protocol}" if choices else one.algorithm
