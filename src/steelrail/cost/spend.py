"""What segments cost: the sum that a bill comes to, for budget and status too. Pure, light to import."""

from __future__ import annotations

from collections.abc import Iterable

from steelrail.cost.balance import Rates, charge
from steelrail.cost.segments import Segment


def spent(paid: Iterable[Segment], rates: Rates) -> int:
    """Return micro-dollars for segments, each rounded once, as the bill rounds them."""
    return sum(charge(one.units, one.seconds, rates.of(one)) for one in paid)
