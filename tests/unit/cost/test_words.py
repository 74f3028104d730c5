"""Numbers to words."""

from __future__ import annotations

from typing import get_args

import pytest

from steelrail.config.schema import Category
from steelrail.cost.pictures import COLOURS
from steelrail.cost.words import MEANINGS, against, cents, clock_time, count, gpu_hours, rate, usd


def test_every_category_has_a_meaning_and_a_colour_of_its_own() -> None:
    assert set(MEANINGS) == set(COLOURS) == set(get_args(Category))
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_money_that_is_not_known_is_not_zero() -> None:
    assert (usd(None), usd(0)) == ("not known", "$0.0000")


@pytest.mark.parametrize(
    ("text", "shown"), [("3.9", "3.90"), ("4", "4.00"), ("2.27125", "2.27125"), ("0.023", "0.023")]
)
def test_rates_keep_every_digit(text: str, shown: str) -> None:
    assert rate(text) == shown


@pytest.mark.parametrize(("micro_usd", "shown"), [(172, "+72%"), (60, "-40%"), (100, "equal")])
def test_a_price_against_the_paid_one(micro_usd: int, shown: str) -> None:
    assert against(micro_usd, 100) == shown


def test_other_words() -> None:
    assert (cents(0.71), cents(0.01), cents(0.001)) == ("71 cents", "1 cent", "less than a cent")
    assert (count(409_600), count(2_500_000_000)) == ("409,600", "2.5 billion")
    assert (gpu_hours(3600.0), gpu_hours(3.6e7)) == ("1.00", "10,000")
    assert clock_time(0.0) == "1970-01-01 00:00:00"
