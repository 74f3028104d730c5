"""When to save, where the run leaves that to us: Young and Daly, from the measured stall and the failures seen. Pure.

Rank 0 alone measures and asks; that all ranks save at that step is the agreement of every step's end.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

from steelrail.artifacts.train import Ending
from steelrail.config.schema import Checkpoints
from steelrail.launch.ledger import Entry
from steelrail.units import show_seconds

# Llama 3 (arXiv 2407.21783, section 3.3.4): 419 unplanned interruptions in 54 days on 16,384 GPUs.
GPU_SECONDS_PER_FAILURE = 54 * 86_400 * 16_384 / 419
# No notice, or one too short to reach the store: the work since the last checkpoint is lost.
_UNPLANNED = frozenset(
    (Ending.NODE_FAILURE, Ending.JOB_ERROR, Ending.STALLED, Ending.PREEMPTION, Ending.ROLLED_BACK, Ending.UNKNOWN)
)
_STALLS = 5
_TOLD_CHANGE = 0.2


def young_daly(stall_seconds: float, mtbf_seconds: float) -> float:
    """Return the seconds of training between two saves that lose least to saves and failures together.

    Source: J. T. Daly, Future Generation Computer Systems 22 (2006) 303-312, equation 37; Young's square root leads it.
    """
    if stall_seconds >= 2 * mtbf_seconds:
        return mtbf_seconds
    share = stall_seconds / (2 * mtbf_seconds)
    young = math.sqrt(2 * stall_seconds * mtbf_seconds)
    return young * (1 + math.sqrt(share) / 3 + share / 9) - stall_seconds


def mtbf(entries: Sequence[Entry], num_gpus: int, now: float) -> float:
    """Return the mean seconds between unplanned endings: what others saw on as many GPUs, and this run's attempts.

    What others saw counts as one failure in the time that it takes on average; ``now`` is in Unix seconds.
    """
    seen = sum(max(0.0, (one.ended if one.ended is not None else now) - one.started) for one in entries)
    failures = sum(1 for one in entries if one.ended is not None and one.ending in _UNPLANNED)
    return (GPU_SECONDS_PER_FAILURE / num_gpus + seen) / (1 + failures)


class Rhythm:
    """Says on rank 0 when a save is due. ``monotonic`` and ``tell`` (given a sentence when the interval changes)."""

    def __init__(
        self, rules: Checkpoints, mtbf_seconds: float, monotonic: Callable[[], float], tell: Callable[[str], object]
    ) -> None:
        self._rules, self._mtbf_seconds, self._monotonic, self._tell = rules, mtbf_seconds, monotonic, tell
        self._stalls: deque[float] = deque(maxlen=_STALLS)
        self._saved_at, self._saved_step = monotonic(), 0
        self._told = 0.0

    @property
    def seconds(self) -> float:
        """Seconds between two saves now; the first comes as early as may be, since nothing is measured before it."""
        if not self._stalls:
            return self._rules.min_seconds
        return max(self._rules.min_seconds, young_daly(median(self._stalls), self._mtbf_seconds))

    def due(self, durable_step: int) -> bool:
        """Return whether it is time to save; ``durable_step``: that of the newest checkpoint in the store (0: none).

        Never while the save before is still on its way: a store that is away or slow would only fall further behind.
        """
        return durable_step >= self._saved_step and self._monotonic() - self._saved_at >= self.seconds

    def saved(self, step: int, stall_seconds: float) -> None:
        """Take note of a save that held training up for ``stall_seconds``."""
        self._stalls.append(stall_seconds)
        self._saved_at, self._saved_step = self._monotonic(), step
        if abs(self.seconds - self._told) > _TOLD_CHANGE * self._told:
            self._told = self.seconds
            self._tell(
                f"a save every {show_seconds(self.seconds)}, or {self._rules.every_steps} steps if that is sooner: "
                f"one holds training up for {median(self._stalls):.3f} s, and a failure comes about once in "
                f"{show_seconds(self._mtbf_seconds)}"
            )
