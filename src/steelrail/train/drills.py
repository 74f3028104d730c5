"""Carrying out a drill: the wait or the fault itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from steelrail.config.schema import Drill

if TYPE_CHECKING:  # a rank has drills before it has torch
    from torch import Tensor

    from steelrail.artifacts.events import EventWriter

# A code that nothing else uses: an ending by drill can be told from any other.
EXIT_BY_DRILL = 99
_HOUR_SECONDS = 3600.0


class DrillError(RuntimeError):
    """Raised on purpose."""


def perform(
    drills: tuple[Drill, ...], now: Callable[[], float], sleep: Callable[[float], None], events: EventWriter
) -> None:
    """Do what the drills say, on this rank, now. ``now`` gives Unix seconds, ``sleep`` takes seconds.

    A wait that is over leaves an event of its own: the bill can be held against what was really waited.
    ``exit`` ends the process without a word, as a crash would; ``hang`` never returns and leaves other threads running.
    ``nan`` is no deed of its own moment: see ``spoil``.
    """
    for drill in drills:
        if drill.kind == "wait":
            start = now()
            sleep(drill.seconds)
            events.write("drill", where=drill.where, start=start, seconds=now() - start)
        elif drill.kind == "raise":
            raise DrillError(f"raised on purpose in {drill.where} at step {drill.at_step} by a drill of the run file")
        elif drill.kind == "exit":
            os._exit(EXIT_BY_DRILL)
        elif drill.kind == "hang":
            while True:
                sleep(_HOUR_SECONDS)


def spoil(drills: tuple[Drill, ...], numbers: Iterable[Tensor]) -> None:
    """Make ``numbers`` not a number, in place, where a drill says so."""
    if any(drill.kind == "nan" for drill in drills):
        for tensor in numbers:
            tensor.fill_(float("nan"))
