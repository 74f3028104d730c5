"""The same work on many items, some at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")


def in_parallel(work: Callable[[S], T], items: Iterable[S], threads: int, name: str = "") -> list[T]:
    """Return ``work`` of each item, in order, by so many threads called ``name``; one is the caller's own.

    Raises the first failure, once what was begun is over; what was not is left.
    """
    if threads == 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads, thread_name_prefix=name) as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
