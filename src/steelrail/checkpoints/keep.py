"""Which checkpoints of the store are kept, and why. Pure.

Kept are the newest, the first of every so many steps, the best by held-out loss, and what a roll back may need; never
is the last provable one let go, and nothing goes while nothing is provable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from steelrail.checkpoints.layout import MANIFEST, StepId
from steelrail.checkpoints.lineage import Resumed, is_void
from steelrail.checkpoints.manifest import Plain
from steelrail.config import schema

HELDOUT_LOSS = "heldout_loss"
NO_ROLL_BACK = schema.BadStep()


@dataclass(frozen=True)
class Held:
    """One checkpoint folder of the store.

    ``fault``: why it cannot be proved (none: it can, by its manifest and the sizes listed); ``created``: when it was
    saved; ``changed``: when its newest object was written (both Unix seconds, none: not known).
    """

    which: StepId
    names: tuple[str, ...]
    size_bytes: int
    fault: str | None
    heldout_loss: float | None = None
    created: float | None = None
    changed: float | None = None

    @property
    def has_manifest(self) -> bool:
        """Whether it was committed."""
        return MANIFEST in self.names


@dataclass(frozen=True)
class Verdict:
    """What becomes of one folder, and why. ``void``: a later attempt replaced its steps."""

    held: Held
    keeps: bool
    why: str
    void: bool


def heldout_loss_of(extra: Mapping[str, Plain]) -> float | None:
    """Return the held-out loss of a checkpoint's own step from its manifest, or none when it was not measured."""
    loss = extra.get(HELDOUT_LOSS)
    return loss if isinstance(loss, float) else None


def why_kept(
    losses: Mapping[StepId, float | None], rules: schema.Checkpoints, bad_step: schema.BadStep = NO_ROLL_BACK
) -> dict[StepId, str]:
    """Return which of some provable checkpoints are kept, and why; ``losses``: each with its held-out loss, if any.

    ``bad_step``: a roll back of a bad step after the newest must find one at least ``back_steps`` good steps before it,
    and so must the next, of a bad step soon after what was resumed from, up to ``limit`` of them one after the other.
    """
    newest_first = sorted(losses, reverse=True)
    reasons: dict[StepId, list[str]] = {}
    for which in newest_first[: rules.keep_last]:
        reasons.setdefault(which, []).append(f"newest {rules.keep_last}")
    # A step that was taken up and saved again by a later attempt is one checkpoint here.
    steps = {which.step: which for which in reversed(newest_first)}
    for which in _first_of_each(steps, rules.keep_every_steps):
        reasons.setdefault(which, []).append(f"first of {rules.keep_every_steps} steps")
    for which, loss in _best({which: losses[which] for which in steps.values()}, rules.keep_best):
        reasons.setdefault(which, []).append(f"best {rules.keep_best} by held-out loss ({loss:.4f})")
    for which in _for_roll_backs(newest_first, steps, bad_step):
        reasons.setdefault(which, []).append(f"a roll back by {bad_step.back_steps} steps may need it")
    return {which: ", ".join(said) for which, said in reasons.items()}


def judge(
    held: Sequence[Held],
    resumed: Sequence[Resumed],
    epoch: int,
    rules: schema.Checkpoints,
    abandoned_before: float = -math.inf,
    bad_step: schema.BadStep = NO_ROLL_BACK,
) -> tuple[Verdict, ...]:
    """Return what becomes of every folder, newest first, in the eyes of the attempt of ``epoch``.

    ``abandoned_before``: an upload of this very attempt that did not grow since then (Unix seconds) is dead too; for
    an attempt that lives itself there is no such time. ``bad_step``: see ``why_kept``.
    """
    losses = {one.which: one.heldout_loss for one in held if one.fault is None and not is_void(one.which, resumed)}
    if not losses:
        return tuple(_verdict(one, resumed, "nothing can be proved, so nothing goes") for one in _newest_first(held))
    kept, newest = why_kept(losses, rules, bad_step), sorted(losses, reverse=True)[: rules.keep_last]
    found = []
    for one in _newest_first(held):
        why = kept.get(one.which) or _why_spared(one, resumed, epoch, newest, abandoned_before)
        found.append(_verdict(one, resumed, why, None if why else _why_gone(one, resumed, rules)))
    return tuple(found)


def _verdict(one: Held, resumed: Sequence[Resumed], keeps: str | None, goes: str | None = None) -> Verdict:
    void = one.has_manifest and is_void(one.which, resumed)
    return Verdict(one, keeps is not None, keeps or goes or "", void)


def _why_spared(
    one: Held, resumed: Sequence[Resumed], epoch: int, newest: Sequence[StepId], abandoned_before: float
) -> str | None:
    """Return why a folder that no rule keeps stays all the same, or none."""
    if one.which.epoch > epoch:
        return "a newer attempt's"
    if not one.has_manifest:
        dead = one.which.epoch < epoch or one.which < newest[0]
        dead = dead or (one.changed is not None and one.changed < abandoned_before)
        return None if dead else "perhaps still being uploaded"
    if is_void(one.which, resumed):
        return None
    return "cannot be proved, but is newer than the last that is kept" if one.which > newest[-1] else None


def _why_gone(one: Held, resumed: Sequence[Resumed], rules: schema.Checkpoints) -> str:
    if not one.has_manifest:
        return "an upload that was not finished"
    if is_void(one.which, resumed):
        return "replaced by a later attempt"
    if one.fault is not None:
        return "cannot be proved, and newer ones can"
    return f"older than the newest {rules.keep_last}"


def _newest_first(held: Sequence[Held]) -> list[Held]:
    return sorted(held, key=lambda one: one.which, reverse=True)


def _for_roll_backs(
    newest_first: Sequence[StepId], steps: Mapping[int, StepId], bad_step: schema.BadStep
) -> list[StepId]:
    """Return those less than ``back_steps`` before the newest, and the next: each may become what to go back to.

    For roll backs after the first, the first of each ``back_steps`` steps before those, as far back as they may go.
    """
    back_steps = bad_step.back_steps
    if back_steps == 0 or not newest_first:
        return []
    young = [which for which in newest_first if which.step > newest_first[0].step - back_steps]
    near = list(newest_first[: len(young) + 1])
    firsts, oldest = list(_firsts(steps, back_steps).values()), near[-1].step
    for _ in range(bad_step.limit - 1):
        oldest = max((which.step for which in firsts if which.step <= oldest - back_steps), default=0)
    return near + [which for which in firsts if oldest <= which.step < near[-1].step]


def _first_of_each(steps: Mapping[int, StepId], every: int) -> list[StepId]:
    """Return the first checkpoint at or after each multiple of ``every`` steps (none before the first multiple)."""
    firsts = _firsts(steps, every) if every else {}
    return [which for stretch, which in firsts.items() if stretch > 0]


def _firsts(steps: Mapping[int, StepId], every: int) -> dict[int, StepId]:
    """Return the first checkpoint of each stretch of ``every`` steps, by stretch."""
    firsts: dict[int, StepId] = {}
    for step in sorted(steps):
        firsts.setdefault(step // every, steps[step])
    return firsts


def _best(losses: Mapping[StepId, float | None], count: int) -> list[tuple[StepId, float]]:
    """Return the ``count`` of lowest loss; of equal ones the newest."""
    measured = [(which, loss) for which, loss in losses.items() if loss is not None and math.isfinite(loss)]
    return sorted(sorted(measured, reverse=True), key=lambda one: one[1])[:count]
