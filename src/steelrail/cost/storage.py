"""What the store costs beside the bill: a month of the bytes kept, and the requests, at the book's rates. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from steelrail.artifacts.events import Event
from steelrail.artifacts.requests import Requests
from steelrail.checkpoints.keep import NO_ROLL_BACK, why_kept
from steelrail.checkpoints.layout import StepId
from steelrail.config import schema
from steelrail.config.prices import PriceBook, StorageRow, storage_on
from steelrail.cost.requests import charge_requests
from steelrail.units import GB, micro_usd


@dataclass(frozen=True)
class Stored:
    """What the run keeps in the store. ``checkpoint_bytes`` are those of the checkpoints that are kept."""

    checkpoint_bytes: int
    checkpoints: int
    shard_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.checkpoint_bytes + self.shard_bytes


@dataclass(frozen=True)
class StorageCost:
    """One store's month for what is kept, its price for reading all of it once from outside, and for the requests
    that the run made (none: not known)."""

    row: StorageRow
    micro_usd_per_month: int
    micro_usd_to_leave: int | None
    micro_usd_of_requests: int | None


def durable_bytes(events: Iterable[Event]) -> dict[int, int]:
    """Return bytes of each step's checkpoint in the store, from the events of all ranks (each reports its own)."""
    sizes: dict[int, int] = {}
    for event in events:
        if event.kind == "durable" and event.data.get("where") == "store":
            sizes[event.data["step"]] = sizes.get(event.data["step"], 0) + int(event.data.get("bytes") or 0)
    return sizes


def heldout_losses(events: Iterable[Event]) -> dict[int, float]:
    """Return the held-out loss of each step at which it was measured."""
    return {event.data["step"]: float(event.data["loss"]) for event in events if event.kind == "heldout"}


def stored(
    sizes: Mapping[int, int],
    losses: Mapping[int, float],
    rules: schema.Checkpoints,
    shard_bytes: int,
    bad_step: schema.BadStep = NO_ROLL_BACK,
) -> Stored:
    """Return what stays in the store by the run's rules. ``sizes``, ``losses``: bytes and held-out loss by step."""
    kept = why_kept({StepId(step, 0): losses.get(step) for step in sizes}, rules, bad_step)
    return Stored(sum(sizes[which.step] for which in kept), len(kept), shard_bytes)


def price_storage(book: PriceBook, on: date, kept: Stored, asked: Requests | None) -> tuple[StorageCost, ...]:
    """Return what every store of the book would charge whose rate was in force, cheapest month first.

    ``asked``: the requests that the run made (none: nobody counted them all).
    """
    costs = (_cost(row, kept, asked) for row in storage_on(book, on))
    return tuple(sorted(costs, key=lambda one: one.micro_usd_per_month))


def _cost(row: StorageRow, kept: Stored, asked: Requests | None) -> StorageCost:
    gigabytes = Decimal(kept.total_bytes) / GB
    leave = None if row.usd_gb_egress is None else micro_usd(gigabytes * Decimal(row.usd_gb_egress))
    requests = None if asked is None else charge_requests(row, asked)
    return StorageCost(row, micro_usd(gigabytes * Decimal(row.usd_gb_month)), leave, requests)


def cost_at(costs: Iterable[StorageCost], service: str | None) -> StorageCost | None:
    """Return what one service charges, or none when it is not said, not in force then, or of low trust."""
    return next((one for one in costs if one.row.service == service and one.row.trust != "low"), None)
