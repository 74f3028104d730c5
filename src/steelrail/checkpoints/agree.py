"""Decisions of all ranks together, on a process group of their own: gather, broadcast, faults that everyone hears."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

import torch.distributed as dist

from steelrail.clients.ranks import RankPlace
from steelrail.errors import BusyError, CheckpointError, NodeError, StoreError

T = TypeVar("T")
KINDS = {kind.__name__: kind for kind in (BusyError, CheckpointError, NodeError, StoreError)}


class RankError(NodeError):
    """A rank's part failed for a reason of its own process or host: it says nothing against a checkpoint."""

    def __init__(self, message: str, culprit: str) -> None:
        super().__init__(message)
        self.culprit = culprit


@dataclass(frozen=True)
class Said(Generic[T]):
    """What one rank's part of a common work came to: a value, or a fault with its error class and host by name."""

    rank: int
    value: T | None
    fault: str | None
    kind: str = ""
    host: str = ""


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

    def each(self, work: Callable[[], T]) -> T:
        """Do this rank's part and return its own value, which is not sent; raises on all ranks what failed on any."""
        own = self._try(work)
        raise_first(self.gather(replace(own, value=None)))
        return cast(T, own.value)

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
            return Said(self.place.rank, None, *_described(error), self.place.host)


def raise_first(said: list[Said[T]]) -> None:
    """Raise the first fault with its rank, as the class it had.

    One that is none of ``KINDS`` (memory, a device, a fault of ours) is that rank's: only a ``CheckpointError`` is
    evidence against a checkpoint, and makes the callers pass it over.
    """
    bad = next((one for one in said if one.fault is not None), None)
    if bad is None:
        return
    kind, message = KINDS.get(bad.kind, NodeError), f"rank {bad.rank}: {bad.fault}"
    raise RankError(message, bad.host) if kind is NodeError else kind(message)


def _described(error: Exception) -> tuple[str, str]:
    """Return what an error says and the name of its kind among ``KINDS``; of an unknown one, its own."""
    kind = next((base.__name__ for base in type(error).__mro__ if base.__name__ in KINDS), None)
    name = type(error).__name__
    return (f"{error}", kind) if kind else (f"{name}: {error}", name)
