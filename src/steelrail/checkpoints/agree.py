"""Decisions of all ranks together, on a process group of their own: gather, broadcast, faults that everyone hears."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import torch.distributed as dist

from steelrail.clients.ranks import RankPlace
from steelrail.errors import BusyError, CheckpointError, NodeError, StoreError

T = TypeVar("T")
KINDS = {kind.__name__: kind for kind in (BusyError, CheckpointError, NodeError, StoreError)}


@dataclass(frozen=True)
class Said(Generic[T]):
    """What one rank's part of a common work came to: a value, or a fault with the name of its error class."""

    rank: int
    value: T | None
    fault: str | None
    kind: str = ""


@dataclass(frozen=True)
class Ranks:
    """Who this process is among the others, and the group on which they speak (gloo: fit for a background thread)."""

    place: RankPlace
    group: dist.ProcessGroup

    @property
    def leads_node(self) -> bool:
        """Whether this rank does its node's work."""
        return self.place.local_rank == 0

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, by rank. Blocks until all have come, at most the group's time-out."""
        values: list[Any] = [None] * self.place.world_size
        dist.all_gather_object(values, value, group=self.group)
        return cast(list[T], values)

    def settle(self, work: Callable[[], T]) -> list[Said[T]]:
        """Do this rank's part and return what every rank's came to, faults included."""
        said = self._try(work)
        return self.gather(said)

    def agree(self, work: Callable[[], T]) -> list[T]:
        """Do this rank's part and return every rank's value; raises on all ranks what failed on any."""
        said = self.settle(work)
        raise_first(said)
        return [cast(T, one.value) for one in said]

    def from_rank(self, source: int, work: Callable[[], T]) -> T:
        """Return what ``work`` gives on rank ``source``, on every rank; raises on all what failed there."""
        box: list[Any] = [self._try(work) if self.place.rank == source else None]
        dist.broadcast_object_list(box, src=source, group=self.group)
        raise_first(box)
        return cast(T, box[0].value)

    def _try(self, work: Callable[[], T]) -> Said[T]:
        try:
            return Said(self.place.rank, work(), None)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks wait to hear of it
            return Said(self.place.rank, None, f"{error}", type(error).__name__)


def raise_first(said: list[Said[T]]) -> None:
    """Raise the first fault, as the class it had, with its rank."""
    bad = next((one for one in said if one.fault is not None), None)
    if bad is not None:
        raise KINDS.get(bad.kind, CheckpointError)(f"rank {bad.rank}: {bad.fault}")
