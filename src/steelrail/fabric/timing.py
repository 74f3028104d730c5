"""Seconds of repeated device work: CUDA events on a GPU, a clock handed in on the CPU."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

Clock = Callable[[], float]


def time_each(
    work: Callable[[], object], repeats: int, device: torch.device, clock: Clock, align: Callable[[], object]
) -> list[float]:
    """Return the seconds of each of ``repeats`` runs of ``work``; ``align`` runs before each, outside its time."""
    with _no_collector():
        if device.type == "cuda":
            return _time_on_gpu(work, repeats, device, align)
        return [_time_once(work, clock, align) for _ in range(repeats)]


def _time_once(work: Callable[[], object], clock: Clock, align: Callable[[], object]) -> float:
    align()
    start = clock()
    work()
    return clock() - start


def _time_on_gpu(
    work: Callable[[], object], repeats: int, device: torch.device, align: Callable[[], object]
) -> list[float]:
    # Nothing here waits for the GPU, so that the host's own delays stay out of the times.
    events = [(_event(), _event()) for _ in range(repeats)]
    for start, end in events:
        align()
        start.record()
        work()
        end.record()
    torch.cuda.synchronize(device)
    return [start.elapsed_time(end) / 1000 for start, end in events]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


@contextmanager
def _no_collector() -> Iterator[None]:
    """Keep Python's collector (5 to 17 ms at a time) out of what is timed."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
