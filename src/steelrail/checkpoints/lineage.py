"""Which checkpoints still count after restarts. Pure.

Each attempt writes down what it resumed from before it trains. A stale attempt that wakes up may still write a manifest
between a newer attempt's look and its first step; by this rule such a manifest is void, whoever reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from steelrail.checkpoints.layout import StepId


@dataclass(frozen=True)
class Resumed:
    """What the attempt of ``epoch`` started from: a step and its epoch; step 0 of epoch 0 is from scratch."""

    epoch: int
    step: int
    from_epoch: int


def is_void(saved: StepId, resumed: Iterable[Resumed]) -> bool:
    """Whether a later attempt started from before ``saved``, so that its steps replaced those that led to it."""
    return any(later.epoch > saved.epoch and later.step < saved.step for later in resumed)
