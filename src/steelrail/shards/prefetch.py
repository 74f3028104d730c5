"""Making the next items while this one is used. Pure but for its thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class _End:
    """No item follows; ``error`` says whether that was meant."""

    error: BaseException | None


def prefetch(items: Iterator[T], depth: int) -> Iterator[T]:
    """Yield ``items``, up to ``depth`` made ahead in a thread that ends with this iterator; its errors rise here."""
    ready: queue.Queue[T | _End] = queue.Queue(depth)
    stop = threading.Event()
    threading.Thread(target=_fill, args=(items, ready, stop), name="prefetch", daemon=True).start()
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stop.set()


def _fill(items: Iterator[T], ready: queue.Queue[T | _End], stop: threading.Event) -> None:
    try:
        for item in items:
            _put(ready, item, stop)
            if stop.is_set():
                return
        _put(ready, _End(None), stop)
    except BaseException as error:  # noqa: BLE001  (raised again where the items are used)
        _put(ready, _End(error), stop)


def _put(ready: queue.Queue[T | _End], item: T | _End, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            ready.put(item, timeout=POLL_SECONDS)
        except queue.Full:
            continue
        return
