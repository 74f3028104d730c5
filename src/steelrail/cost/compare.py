"""The same GPU-hours at the book's other rates: same GPU in the same form, each as far as it can be trusted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from steelrail.artifacts.cost import Comparison
from steelrail.config.prices import PriceBook, PriceRow, is_stale, rows_on, usd_per_gpu_hour
from steelrail.cost.balance import charge
from steelrail.cost.segments import Segment


def compare(
    book: PriceBook, paid_at: PriceRow, on: date, paid: Sequence[Segment], max_age_days: int
) -> tuple[Comparison, ...]:
    """Return what the GPU segments would have cost on that day at every rate for the same GPU, cheapest first.

    CPU segments are left out: the book has no rates for them. The rate that was paid is among the rows.
    """
    rows = [row for row in rows_on(book, on) if row.gpu == paid_at.gpu and _shown(row, paid_at)]
    if (paid_at.provider, paid_at.sku) not in {(row.provider, row.sku) for row in rows}:
        rows.append(paid_at)
    found = [_comparison(row, paid, is_stale(row, on, max_age_days)) for row in rows]
    return tuple(sorted(found, key=lambda one: (one.micro_usd, one.provider, one.sku)))


def _shown(row: PriceRow, paid_at: PriceRow) -> bool:
    """A low row of the SKU that was paid would stand beside the trusted row that priced the run."""
    return (row.provider, row.sku) != (paid_at.provider, paid_at.sku) or row == paid_at


def _comparison(row: PriceRow, paid: Sequence[Segment], stale: bool) -> Comparison:
    rate = usd_per_gpu_hour(row)
    return Comparison(
        provider=row.provider,
        sku=row.sku,
        region=row.region,
        mode=row.mode,
        usd_per_gpu_hour=f"{rate.normalize():f}",
        micro_usd=sum(charge(one.gpus, one.seconds, rate) for one in paid if one.gpus),
        read_on=row.read_on.isoformat(),
        source=row.source,
        trust=row.trust,
        stale=stale,
    )
