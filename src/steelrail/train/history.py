"""What training remembers of its own steps: the tail of the loss, and the steps whose update was left out. Pure.

Every checkpoint says it beside its tensors, so that a restart judges the next step as the run before it would have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from steelrail.config.schema import BadStep

_LOSSES, _SKIPPED = "loss_tail", "skipped_steps"


@dataclass
class History:
    """``losses``: those of the newest good steps, the newest last; ``skipped``: all steps that were left out."""

    losses: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Fault:
    """Why a step is bad: what of it must be what, and is what."""

    what: str
    wanted: str
    found: float


def fault_of(history: History, settings: BadStep, loss: float, norm: float) -> Fault | None:
    """Return why a step of this global loss and gradient norm is bad, or none. A spike needs a full window."""
    for what, value in (("loss", loss), ("gradient norm", norm)):
        if not math.isfinite(value):
            return Fault(what, "finite", value)
    tail = history.losses[-settings.spike_window :]
    if settings.spike_factor is None or len(tail) < settings.spike_window:
        return None
    usual = median(tail)
    wanted = f"at most {settings.spike_factor:g} x {usual:.4g}, the median of the last {len(tail)}"
    return Fault("loss", wanted, loss) if loss > settings.spike_factor * usual else None


def rolled_back_to(settings: BadStep, step: int) -> tuple[int, int]:
    """Return what a roll back at a bad ``step`` means: the newest step to resume from, the first step to leave out.

    What is left out lies after what is resumed from, whichever checkpoint that is: the schema sees to it.
    """
    return max(0, step - 1 - settings.back_steps), max(1, step + 1 - settings.leave_out_steps)


def keep_loss(history: History, settings: BadStep, loss: float) -> None:
    """Remember the loss of a good step."""
    history.losses.append(loss)
    del history.losses[: -settings.spike_window]


def to_plain(history: History) -> dict[str, str]:
    """Return the history as a checkpoint says it: exact, since the text of a float names that float alone."""
    return {_LOSSES: " ".join(map(repr, history.losses)), _SKIPPED: " ".join(map(str, history.skipped))}


def take_up(history: History, said: Mapping[str, object]) -> None:
    """Make the history what a checkpoint says; one made before it was kept says nothing, and left no step out."""
    history.losses[:] = [float(one) for one in str(said.get(_LOSSES, "")).split()]
    history.skipped[:] = [int(one) for one in str(said.get(_SKIPPED, "")).split()]
