"""Carrying out a drill: the wait or the fault itself."""

from __future__ import annotations

import os
from collections.abc import Callable

from steelrail.config.schema import Drill

# A code that nothing else uses: an ending by drill can be told from any other.
EXIT_BY_DRILL = 99
_HOUR_SECONDS = 3600.0


class DrillError(RuntimeError):
    """Raised on purpose."""


def perform(drills: tuple[Drill, ...], sleep: Callable[[float], None]) -> None:
    """Do what the drills say, on this rank, now. ``sleep`` takes seconds.

    ``exit`` ends the process without a word, as a crash would; ``hang`` never returns and leaves other threads running.
    """
    for drill in drills:
        if drill.kind == "wait":
            sleep(drill.seconds)
        elif drill.kind == "raise":
            raise DrillError(f"raised on purpose in {drill.where} at step {drill.at_step} by a drill of the run file")
        elif drill.kind == "exit":
            os._exit(EXIT_BY_DRILL)
        else:
            while True:
                sleep(_HOUR_SECONDS)
