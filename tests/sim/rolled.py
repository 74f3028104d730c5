"""Knows what a simulated world's attempts decided at bad steps, and raises where a promise about that is broken."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from steelrail.checkpoints.lineage import Rollback, left_out


@dataclass(frozen=True)
class Seen:
    """What was so when an attempt began to look: roll backs recorded, who had resumed, what was carried out by whom."""

    recorded: Mapping[int, Rollback]
    resumed: frozenset[int]
    carried: Mapping[int, int]


@dataclass(frozen=True)
class Met:
    """A decision at a bad step. ``moment``: the store's mutations by then; ``stale``: a newer attempt was there."""

    decided: Rollback
    moment: int
    stale: bool


@dataclass(eq=False)
class RollBacks:
    """Roll backs by the epoch that decided them, and the epochs of all that wrote down what they resumed from.

    ``carried``: by which attempt each was carried out, as long as no attempt that did not see that resumed after it.
    """

    require: Callable[[str, bool, str], None]
    met: dict[int, Met] = field(default_factory=dict)
    recorded: dict[int, Rollback] = field(default_factory=dict)
    resumed: set[int] = field(default_factory=set)
    carried: dict[int, int] = field(default_factory=dict)
    seen: dict[int, Seen] = field(default_factory=dict)

    def meets(self, decided: Rollback, moment: int, stale: bool) -> None:
        """Hear what rank 0 of an attempt is about to record."""
        self.met[decided.epoch] = Met(decided, moment, stale)

    def record(self, epoch: int, said: Mapping[str, Any], looked: int, stale: bool) -> None:
        """Hear what the store holds from now on; ``looked``: when its writer last looked at the fence."""
        met, found = self.met[epoch], Rollback(epoch, **said)
        self.require("a roll back is recorded as it was decided", found == met.decided, f"{found}, not {met.decided}")
        self.require("an attempt that is stale at its bad step records nothing", not met.stale, f"{found}")
        in_order = not stale or looked > met.moment
        self.require("an attempt looks at the fence between its bad step and the record", in_order, f"{found}")
        self.recorded.setdefault(epoch, found)

    def ends(self, epoch: int) -> None:
        """Check that a rank which goes on from ``roll_back`` leaves a record behind."""
        self.require("a roll back is recorded before any rank ends", epoch in self.recorded, f"{epoch}")

    def looks(self, epoch: int) -> None:
        """Hear that an attempt begins to look at the store."""
        self.seen[epoch] = Seen(dict(self.recorded), frozenset(self.resumed), dict(self.carried))

    def knows(self, epoch: int, said: Sequence[Rollback]) -> None:
        """Check what an attempt was told: all that was recorded when it began to look, and nothing else."""
        real = all(self.recorded.get(one.epoch) == one for one in said)
        self.require("a roll back that was not recorded changes nothing", real, f"{epoch}: {said}")
        before = self.seen[epoch].recorded.values()
        forgotten = left_out(before) - left_out(said)
        self.require("every later attempt leaves out the same steps", not forgotten, f"{epoch}: {forgotten}")
        self.require("every later attempt knows of each roll back", set(before) <= set(said), f"{epoch}: {said}")

    def known(self) -> int:
        """Return how many the newest attempt that looked knows of, its own among them: no fewer count from now on."""
        newest = max(self.seen, default=0)
        return len({*self.seen[newest].recorded, *self.recorded.keys() & {newest}}) if newest else 0

    def allowed(self) -> float:
        """Return the newest step that an attempt may resume from which begins to look now."""
        return _least(self.recorded, self.resumed)

    def excused(self, epoch: int) -> float:
        """Return the oldest bound that an attempt may have found standing, since it began to look."""
        return _least(self.recorded, self.seen[epoch].resumed)

    def resumes(self, epoch: int, step: int) -> None:
        """Check what an attempt writes down to resume from, the first time that this is in the store."""
        if epoch in self.resumed:
            return
        self.old_enough(epoch, step)
        standing = [one for one in self.recorded.values() if one.epoch >= max(self.resumed, default=0)]
        if epoch > max(self.resumed, default=0):
            unseen = [other for other, by in self.carried.items() if by not in self.seen[epoch].resumed]
            for other in unseen:
                del self.carried[other]
            self.carried.update({one.epoch: epoch for one in standing if step <= one.at_most})
        self.resumed.add(epoch)

    def old_enough(self, epoch: int, step: int) -> None:
        """Check a step against the bounds that stood from before an attempt looked until now."""
        before = {other: one for other, one in self.seen[epoch].recorded.items() if other < epoch}
        bound = _least(before, self.resumed - {epoch})
        promise = "after a roll back nothing newer than it allows is resumed from"
        self.require(promise, step <= bound, f"{epoch} from step {step}, not {bound}")

    def never_again(self, epoch: int, name: str, made_by: int, step: int) -> None:
        """Check that a state which is about to be resumed from is none of a branch that was rolled back for good."""
        for other, by in self.carried.items():
            if self.seen[epoch].carried.get(other) == by:
                kept = made_by > other or step <= self.recorded[other].at_most
                self.require("what was rolled back never counts again", kept, f"{name} after {self.recorded[other]}")


def _least(recorded: Mapping[int, Rollback], resumed: set[int] | frozenset[int]) -> float:
    newest = max(resumed, default=0)
    return min((float(one.at_most) for one in recorded.values() if one.epoch >= newest), default=math.inf)
