"""What keeping the run's state costs a month."""

from __future__ import annotations

from datetime import date
from typing import Any

import synthetic

from steelrail.artifacts.events import Event
from steelrail.config.prices import load_price_book
from steelrail.cost.storage import Stored, durable_bytes, month_at, price_storage, stored

BOOK = load_price_book(synthetic.HOME / "config" / "prices")


def durable(step: int, where: str, size: int) -> Event:
    data: dict[str, Any] = {"step": step, "where": where, "bytes": size}
    return Event(0.0, "durable", 1, 0, "node1", data)


def test_bytes_of_all_ranks_in_the_store_are_summed_by_step() -> None:
    events = [durable(25, "store", 3), durable(25, "store", 4), durable(25, "nvme", 9), durable(50, "store", 5)]
    assert durable_bytes(events) == {25: 7, 50: 5}


def test_only_the_checkpoints_that_are_kept_count() -> None:
    assert stored({25: 1, 50: 2, 75: 4}, 2, 10) == Stored(6, 2, 10)


def test_a_seventy_billion_state_costs_twenty_dollars_a_month() -> None:
    costs = price_storage(BOOK, date(2026, 11, 30), Stored(847_000_000_000, 1, 0))
    assert month_at(costs, "aws-s3-standard") == 19_481_000


def test_stores_are_cheapest_first_and_unknown_egress_is_not_free() -> None:
    costs = price_storage(BOOK, date(2026, 11, 30), Stored(10**9, 1, 0))
    assert [(one.row.service, one.micro_usd_per_month, one.micro_usd_to_leave) for one in costs] == [
        ("aws-s3-standard", 23_000, 90_000),
        ("coreweave-object-hot", 60_000, 0),
        ("aws-s3-express", 110_000, None),
    ]


def test_a_rate_not_yet_in_force_is_left_out() -> None:
    costs = price_storage(BOOK, date(2026, 9, 1), Stored(10**9, 1, 0))
    assert month_at(costs, "coreweave-object-hot") is None
