"""What keeping the run's state costs a month, beside the bill: bytes in the store at the book's rates. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from steelrail.artifacts.events import Event
from steelrail.config.prices import PriceBook, StorageRow
from steelrail.units import GB, micro_usd


@dataclass(frozen=True)
class Stored:
    """What the run keeps in the store. ``checkpoint_bytes`` are those of the newest checkpoints it retains."""

    checkpoint_bytes: int
    checkpoints: int
    shard_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.checkpoint_bytes + self.shard_bytes


@dataclass(frozen=True)
class StorageCost:
    """One store's month for what is kept, and its price for reading all of it once from outside (none: not known)."""

    row: StorageRow
    micro_usd_per_month: int
    micro_usd_to_leave: int | None


def durable_bytes(events: Iterable[Event]) -> dict[int, int]:
    """Return bytes of each step's checkpoint in the store, from the events of all ranks (each reports its own)."""
    sizes: dict[int, int] = {}
    for event in events:
        if event.kind == "durable" and event.data.get("where") == "store":
            sizes[event.data["step"]] = sizes.get(event.data["step"], 0) + int(event.data.get("bytes") or 0)
    return sizes


def stored(sizes: Mapping[int, int], keep_last: int, shard_bytes: int) -> Stored:
    """Return what stays in the store when only the newest ``keep_last`` checkpoints are kept."""
    kept = sorted(sizes)[-keep_last:]
    return Stored(sum(sizes[step] for step in kept), len(kept), shard_bytes)


def price_storage(book: PriceBook, on: date, kept: Stored) -> tuple[StorageCost, ...]:
    """Return the month at every store of the book whose rate was in force, cheapest first."""
    newest = {(row.service, row.region): row for row in book.storage if row.effective_from <= on}
    return tuple(sorted((_cost(row, kept) for row in newest.values()), key=lambda one: one.micro_usd_per_month))


def _cost(row: StorageRow, kept: Stored) -> StorageCost:
    gigabytes = Decimal(kept.total_bytes) / GB
    leave = None if row.usd_gb_egress is None else micro_usd(gigabytes * Decimal(row.usd_gb_egress))
    return StorageCost(row, micro_usd(gigabytes * Decimal(row.usd_gb_month)), leave)


def month_at(costs: Iterable[StorageCost], service: str) -> int | None:
    """Return the month at one service, or none when the book does not know it."""
    return next((one.micro_usd_per_month for one in costs if one.row.service == service), None)
