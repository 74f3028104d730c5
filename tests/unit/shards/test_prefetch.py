"""Prefetching: order, errors, and a thread that ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from steelrail.shards.prefetch import prefetch


def threads() -> int:
    return sum(thread.name == "prefetch" for thread in threading.enumerate())


def settle(count: int) -> bool:
    until = time.monotonic() + 5
    while threads() != count and time.monotonic() < until:
        time.sleep(0.01)
    return threads() == count


def test_items_come_out_in_order_and_the_thread_ends() -> None:
    assert list(prefetch(iter(range(50)), 3)) == list(range(50))
    assert settle(0)


def test_an_error_comes_out_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("spoilt")

    found = prefetch(items(), 2)
    assert next(found) == 1
    with pytest.raises(ValueError, match="spoilt"):
        next(found)


def test_items_are_made_ahead_but_not_further_than_asked() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for item in range(100):
            made.append(item)
            yield item

    found = prefetch(items(), 2)
    assert next(found) == 0
    time.sleep(0.3)
    assert 3 <= len(made) <= 4
    found.close()  # type: ignore[attr-defined]


def test_closing_early_ends_the_thread() -> None:
    found = prefetch(iter(range(10**9)), 2)
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert settle(0)
