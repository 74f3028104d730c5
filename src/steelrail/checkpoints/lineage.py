"""Which checkpoints still count after restarts. Pure.

Each attempt writes down what it resumed from before it trains. A stale attempt that wakes up may still write a manifest
between a newer attempt's look and its first step; by this rule such a manifest is void, whoever reads it. Its record of
what it resumed from may come as late; what newer attempts stand on is not voided by it.

An attempt that rolls back writes down how old the next one's checkpoint must be. That holds until an attempt after it
has written what it resumed from: from then on that very record voids what was saved after that step before.
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


@dataclass(frozen=True)
class Rollback:
    """What the attempt of ``epoch`` decided at its bad ``step``.

    The next attempt resumes from a checkpoint of step ``at_most`` or before (0: from first weights); it and every later
    one leave out the updates of the steps ``first`` to ``step``.
    """

    epoch: int
    step: int
    at_most: int
    first: int
    why: str


def newest_allowed(rollbacks: Iterable[Rollback], resumed: Iterable[Resumed]) -> int | None:
    """Return the newest step from which the next attempt may resume; none when any will do."""
    newest = max((one.epoch for one in resumed), default=0)
    return min((one.at_most for one in rollbacks if one.epoch >= newest), default=None)


def left_out(rollbacks: Iterable[Rollback]) -> frozenset[int]:
    """Return the steps whose updates are left out."""
    return frozenset(step for one in rollbacks for step in range(one.first, one.step + 1))


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
