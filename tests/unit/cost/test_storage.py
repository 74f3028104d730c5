"""What keeping the run's state costs a month."""

from __future__ import annotations

from datetime import date
from typing import Any

import synthetic

from steelrail.artifacts.events import Event
from steelrail.artifacts.requests import Requests
from steelrail.config.prices import load_price_book
from steelrail.config.schema import BadStep, Checkpoints
from steelrail.cost.storage import Stored, cost_at, durable_bytes, price_storage, stored

BOOK = load_price_book(synthetic.HOME / "config" / "prices")


def durable(step: int, where: str, size: int) -> Event:
    data: dict[str, Any] = {"step": step, "where": where, "bytes": size}
    return Event(0.0, "durable", 1, 0, "node1", data)


def test_bytes_of_all_ranks_in_the_store_are_summed_by_step() -> None:
    events = [durable(25, "store", 3), durable(25, "store", 4), durable(25, "nvme", 9), durable(50, "store", 5)]
    assert durable_bytes(events) == {25: 7, 50: 5}


def test_only_the_checkpoints_that_are_kept_count() -> None:
    sizes, losses = {25: 1, 50: 2, 75: 4, 100: 8}, {25: 2.0, 50: 3.0}
    assert stored(sizes, losses, Checkpoints(keep_last=1), 10) == Stored(8, 1, 10)
    assert stored(sizes, losses, Checkpoints(keep_last=1, keep_best=1), 10) == Stored(9, 2, 10)
    assert stored(sizes, losses, Checkpoints(keep_last=1, keep_every_steps=50), 10) == Stored(10, 2, 10)
    assert stored(
        sizes, losses, Checkpoints(keep_last=1), 10, BadStep(policy="roll_back", back_steps=30, limit=1)
    ) == Stored(14, 3, 10)
    assert stored(
        sizes, losses, Checkpoints(keep_last=1), 10, BadStep(policy="roll_back", back_steps=30, limit=2)
    ) == Stored(15, 4, 10)


def test_a_seventy_billion_state_costs_twenty_dollars_a_month() -> None:
    costs = price_storage(BOOK, date(2026, 11, 30), Stored(847_000_000_000, 1, 0), None)
    at_home = cost_at(costs, "aws-s3-standard")
    assert at_home is not None and at_home.micro_usd_per_month == 19_481_000


def test_stores_are_cheapest_first_and_unknown_egress_is_not_free() -> None:
    costs = price_storage(BOOK, date(2026, 11, 30), Stored(10**9, 1, 0), None)
    assert [(one.row.service, one.micro_usd_per_month, one.micro_usd_to_leave) for one in costs] == [
        ("aws-s3-standard", 23_000, 90_000),
        ("coreweave-object-hot", 60_000, 0),
        ("aws-s3-express", 110_000, None),
    ]


def test_a_rate_not_yet_in_force_is_left_out() -> None:
    costs = price_storage(BOOK, date(2026, 9, 1), Stored(10**9, 1, 0), None)
    assert cost_at(costs, "coreweave-object-hot") is None


def test_a_store_that_is_not_said_is_none_of_them() -> None:
    assert cost_at(price_storage(BOOK, date(2026, 11, 30), Stored(10**9, 1, 0), None), None) is None


def test_requests_are_priced_at_every_store_and_those_of_a_free_one_cost_nothing() -> None:
    costs = price_storage(BOOK, date(2026, 11, 30), Stored(0, 0, 0), Requests(put=900_000, get=2_000_000, list=100_000))
    assert {one.row.service: one.micro_usd_of_requests for one in costs} == {
        "aws-s3-standard": 5_000_000 + 800_000,
        "coreweave-object-hot": 0,
        "aws-s3-express": 1_130_000 + 60_000,
    }


def test_requests_that_nobody_counted_cost_an_unknown_sum() -> None:
    costs = price_storage(BOOK, date(2026, 11, 30), Stored(0, 0, 0), None)
    assert {one.micro_usd_of_requests for one in costs} == {None}
