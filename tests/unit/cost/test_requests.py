"""What requests to the store cost: exact where all are known, else not known, never nothing."""

from __future__ import annotations

from datetime import date

import pytest

from steelrail.artifacts.events import Event
from steelrail.artifacts.requests import NotedRequests, Requests
from steelrail.artifacts.train import Attempt, Ending
from steelrail.config.prices import StorageRow
from steelrail.cost.requests import bill_requests, by_process, charge_requests, told, uncounted


def rates(puts: str | None, gets: str | None) -> StorageRow:
    return StorageRow(
        service="s3",
        region="r",
        usd_gb_month="0.02",
        usd_per_1k_puts=puts,
        usd_per_1k_gets=gets,
        effective_from=date(2026, 1, 1),
        read_on=date(2026, 11, 9),
        source="a page",
        trust="high",
    )


def attempt(number: int, first_step: int | None = 1) -> Attempt:
    return Attempt(
        attempt=number, job_id="1", step_id="1.0", segment=0, nodes=("n1",), epoch=1, started=0.0, ended=1.0,
        ending=Ending.DONE, exit_code=0, reason="", resumed_from=None, first_step=first_step, last_step=first_step,
        code_digest="c",
    )  # fmt: skip


def test_the_words_of_one_rank_are_added_up() -> None:
    events = [
        Event(1.0, "requests", 1, 0, "n", {"put": 1, "get": 2, "list": 3, "delete": 4}),
        Event(2.0, "enter", 1, 0, "n", {"category": "staging"}),
        Event(3.0, "requests", 1, 0, "n", {"put": 10, "get": 0, "list": 0, "delete": 0}),
    ]
    assert told(events) == Requests(put=11, get=2, list=3, delete=4)


def test_a_rank_that_said_nothing_of_requests_is_not_one_that_made_none() -> None:
    assert told([Event(2.0, "enter", 1, 0, "n", {"category": "staging"})]) is None
    assert told([Event(2.0, "requests", 1, 0, "n", Requests().model_dump())]) == Requests()


def test_requests_of_another_key_are_not_this_runs() -> None:
    noted = [
        NotedRequests(stage="shards", key="mine", requests=Requests(put=1)),
        NotedRequests(stage="shards", key="other", requests=Requests(put=100)),
        NotedRequests(stage="shards", key="mine", requests=Requests(get=2)),
        NotedRequests(stage="train", key="mine", requests=Requests(list=5)),
    ]
    counts = by_process(noted, {("shards", "mine"), ("train", "mine")}, {2: Requests(put=7), 1: Requests(put=6)})
    assert list(counts.items()) == [
        ("shards", Requests(put=1, get=2)),
        ("train", Requests(list=5)),
        ("attempt 1", Requests(put=6)),
        ("attempt 2", Requests(put=7)),
    ]


@pytest.mark.parametrize(
    ("puts", "gets", "requests", "expected"),
    [
        ("0.005", "0.0004", Requests(put=600, list=400, get=1000, delete=10**9), 5_400),
        ("0.005", "0.0004", Requests(), 0),
        ("0", "0", Requests(put=10**9, get=10**9), 0),
        ("0.005", None, Requests(put=1000), 5_000),
        ("0.005", None, Requests(put=1000, get=1), None),
        (None, "0.0004", Requests(get=1000), 400),
        (None, "0.0004", Requests(list=1), None),
        ("0.0005", "0.0005", Requests(put=1, get=2), 2),  # 1.5: half to even, once
        ("0.0005", "0.0005", Requests(put=1), 0),  # 0.5
    ],
)
def test_requests_are_charged_exactly_or_not_at_all(
    puts: str | None, gets: str | None, requests: Requests, expected: int | None
) -> None:
    assert charge_requests(rates(puts, gets), requests) == expected


def test_a_bill_names_its_source_even_when_it_is_free() -> None:
    made = bill_requests({"shards": Requests(put=5)}, None, rates("0", "0"))
    assert (made.micro_usd, made.reason, made.service, made.source, made.read_on) == (
        0, None, "s3", "a page", "2026-11-09",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "row", "reason"),
    [
        ("requests of attempt 2 were not counted", rates("0", "0"), "requests of attempt 2 were not counted"),
        (None, None, "the price of this store is not in the price book"),
        (None, rates(None, "0"), "the price of a request at s3 is not in the price book"),
    ],
)
def test_what_is_not_known_costs_no_sum_and_says_why(fault: str | None, row: StorageRow | None, reason: str) -> None:
    made = bill_requests({"shards": Requests(put=5)}, fault, row)
    assert (made.micro_usd, made.reason, made.total) == (None, reason, Requests(put=5))


def test_an_attempt_that_made_steps_and_shards_that_were_made_must_have_counted() -> None:
    counts = {"shards": Requests(), "attempt 1": Requests()}
    assert uncounted(counts, [attempt(1), attempt(2, first_step=None)]) is None
    assert uncounted(counts, [attempt(1), attempt(3)]) == "requests of attempt 3 were not counted"
    assert uncounted({}, []) == "requests of shards were not counted"
