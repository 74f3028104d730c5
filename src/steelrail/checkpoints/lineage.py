"""Which checkpoints still count after restarts. Pure.

Each attempt writes down what it resumed from before it trains. A stale attempt that wakes up may still write a manifest
between a newer attempt's look and its first step; by this rule such a manifest is void, whoever reads it. Its record of
what it resumed from may come as late; what newer attempts stand on is not voided by it.
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
    """Whether ``saved`` does not lie on the way to where the newest attempt started: its steps were replaced."""
    for later in _way_back(resumed):
        if saved.epoch >= later.epoch:
            return False
        if saved.step > later.step or saved.epoch > later.from_epoch:
            return True
    return False


def _way_back(resumed: Iterable[Resumed]) -> list[Resumed]:
    """Return the newest attempt's record, that of the attempt it resumed from, and so on.

    An attempt that was gone before it wrote its record leaves a gap (it can have uploaded what it took over from NVMe):
    the way goes on with the newest record before it.
    """
    way: list[Resumed] = []
    for one in sorted(resumed, key=lambda one: one.epoch, reverse=True):
        if not way or one.epoch <= way[-1].from_epoch:
            way.append(one)
    return way
