"""What segments cost, as a bill sums them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from steelrail.cost.balance import Rates
from steelrail.cost.segments import Segment
from steelrail.cost.spend import spent

RATES = Rates(Decimal("3.99"), Decimal("0.04"))


def segment(seconds: float, gpus: int = 64, cpus: int = 8) -> Segment:
    return Segment("train", "1", 0, "COMPLETED", ("n1",), 100.0, 100.0 + seconds, gpus, cpus)


def test_an_hour_of_gpus_and_an_hour_of_cpus_where_there_are_none() -> None:
    assert spent([segment(3600.0), segment(3600.0, gpus=0)], RATES) == 64 * 3_990_000 + 8 * 40_000


@pytest.mark.parametrize(("segments", "expected"), [(1, 1_108), (3, 3_324)])
def test_each_segment_is_rounded_once_as_on_the_bill(segments: int, expected: int) -> None:
    # One GPU-second is 1,108.33 micro-dollars; three together would be 3,325.
    assert spent([segment(1.0, gpus=1)] * segments, RATES) == expected


def test_nothing_costs_nothing() -> None:
    assert spent([], RATES) == 0
