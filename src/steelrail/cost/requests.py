"""What the requests to the store cost, beside the bill: counts that the run's own processes told, at a rate. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from decimal import Decimal

from steelrail.artifacts.cost import RequestsCost
from steelrail.artifacts.events import Event
from steelrail.artifacts.requests import NotedRequests, Requests
from steelrail.artifacts.train import Attempt
from steelrail.config.prices import StorageRow
from steelrail.units import micro_usd


def told(events: Iterable[Event]) -> Requests | None:
    """Return what one rank's events tell, or none when they tell nothing of requests."""
    counts = [Requests.model_validate(event.data) for event in events if event.kind == "requests"]
    return sum(counts, Requests()) if counts else None


def by_process(
    noted: Iterable[NotedRequests], keys: Set[tuple[str, str]], ranks: Mapping[int, Requests]
) -> dict[str, Requests]:
    """Return requests by who made them: stages as noted (those of ``keys`` alone), then attempts in order."""
    found: dict[str, Requests] = {}
    for one in noted:
        if (one.stage, one.key) in keys:
            found[one.stage] = found.get(one.stage, Requests()) + one.requests
    return found | {f"attempt {attempt}": ranks[attempt] for attempt in sorted(ranks)}


def uncounted(counts: Mapping[str, Requests], attempts: Sequence[Attempt]) -> str | None:
    """Return whose requests nobody counted, or none: a sum without them would be too low.

    Data shards are never made or found without a request, and no attempt makes a step without one.
    """
    silent = [f"attempt {one.attempt}" for one in attempts if one.first_step is not None]
    missing = [name for name in ("shards", *silent) if name not in counts]
    return f"requests of {', '.join(missing)} were not counted" if missing else None


def charge_requests(row: StorageRow, requests: Requests) -> int | None:
    """Return micro-dollars for requests, rounded half to even once; none where a rate is needed and not known.

    LIST costs as PUT does, HEAD as GET; DELETE and aborts are free.
    """
    parts = ((requests.put + requests.list, row.usd_per_1k_puts), (requests.get, row.usd_per_1k_gets))
    if any(count and usd is None for count, usd in parts):
        return None
    return micro_usd(sum((count * Decimal(usd) for count, usd in parts if usd is not None), Decimal(0)) / 1000)


def bill_requests(counts: Mapping[str, Requests], fault: str | None, row: StorageRow | None) -> RequestsCost:
    """Return the requests of a run priced at its own store (``row``: none when the book does not know it)."""
    total = sum(counts.values(), Requests())
    money = None if fault or row is None else charge_requests(row, total)
    if fault is None and money is None:
        what = "the price of this store is" if row is None else f"the price of a request at {row.service} is"
        fault = f"{what} not in the price book"
    return RequestsCost(
        counts=dict(counts),
        total=total,
        micro_usd=money,
        reason=fault,
        service=row.service if row else None,
        read_on=row.read_on.isoformat() if row else None,
        source=row.source if row else None,
    )
