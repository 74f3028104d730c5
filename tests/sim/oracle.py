"""Knows all that happened in a simulated world, and raises where it breaks a promise of the checkpoints."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from rolled import RollBacks
from sim_clock import Process
from sim_store import Server

from steelrail.checkpoints.layout import MANIFEST, StepId, parse_fence, parse_folder
from steelrail.checkpoints.manifest import Manifest, decode
from steelrail.config import schema


class BrokenPromiseError(BaseException):
    """What was promised is not so. No ``except Exception`` of the code under test may swallow it."""


@dataclass(frozen=True)
class Content:
    """A training state: which attempt made it, at which step, going on from which."""

    name: str
    epoch: int
    step: int
    parent: str


@dataclass(frozen=True)
class Twice:
    """A save of which each of ``size`` nodes held a second copy. ``hosts``: those that have lost nothing since."""

    size: int
    hosts: frozenset[int]


@dataclass(frozen=True)
class There:
    """What was there to resume from when an attempt began to look: whole in the store, and ever committed there."""

    whole: frozenset[StepId]
    ever: frozenset[StepId]


@dataclass(eq=False)
class Oracle:
    """``contents``: every state ever saved; ``base``: what each attempt that wrote down its start began from.

    ``twice``: saves of which every node said that it has its second copy. ``let_go``: manifests that were removed, each
    with the attempt that did. ``acked``: what was committed by the newest attempt of its time and not rolled back since
    (``ever_acked``: or was).
    """

    server: Server
    rotten: bool = False
    bad_step: schema.BadStep = field(default_factory=schema.BadStep)
    contents: dict[str, Content] = field(default_factory=dict)
    held: dict[StepId, str] = field(default_factory=dict)
    base: dict[int, str] = field(default_factory=dict)
    claims: list[int] = field(default_factory=list)
    newest_claim: int = 0
    acked: set[StepId] = field(default_factory=set)
    ever_acked: set[StepId] = field(default_factory=set)
    last_put: dict[StepId, int] = field(default_factory=dict)
    stale: set[StepId] = field(default_factory=set)
    let_go: set[tuple[StepId, int]] = field(default_factory=set)
    put_once: set[tuple[StepId, str]] = field(default_factory=set)
    manifests: dict[StepId, Manifest] = field(default_factory=dict)
    encoded: dict[StepId, bytes] = field(default_factory=dict)
    checked: Counter[str] = field(default_factory=Counter)
    copies: dict[tuple[StepId, int], set[int]] = field(default_factory=dict)
    twice: dict[StepId, Twice] = field(default_factory=dict)
    there: dict[int, There] = field(default_factory=dict)
    commits: int = 0
    void_commits: int = 0

    def __post_init__(self) -> None:
        """Roll backs have promises of their own."""
        self.rolls = RollBacks(self.require)

    def require(self, promise: str, kept: bool, said: str) -> None:
        """Raise unless ``kept``."""
        self.checked[promise] += 1
        if not kept:
            raise BrokenPromiseError(f"{promise}: {said}")

    def heed(self, verb: str, key: str, process: Process) -> None:
        """Look at the store after a request took effect."""
        folder, _, name = key.rpartition("/")
        which = parse_folder(folder.rpartition("/")[2])
        if which is not None and verb in ("put", "complete", "delete"):
            self._folder_changed(verb, which, name, process)
        elif verb == "list" and key.endswith("fence/"):
            process.looked = self.server.mutations
        elif verb == "put" and (fence := parse_fence(name)) is not None:
            self._fence_changed(key, *fence, process)

    def _folder_changed(self, verb: str, which: StepId, name: str, process: Process) -> None:
        if verb == "delete":
            self._deleted(which, name, process.epoch)
        elif name == MANIFEST:
            self._manifest_put(which, process)
        elif (which, name) not in self.put_once:
            # Repeats of what is there already do not count.
            self.put_once.add((which, name))
            self.last_put[which] = self.server.mutations

    def _manifest_put(self, which: StepId, process: Process) -> None:
        if which in self.manifests:
            return
        self.encoded[which] = self.server.objects[manifest_key(which)]
        manifest = self.manifests[which] = decode(self.encoded[which], which.folder)
        # A newer attempt may have swept what a stale one left unfinished; then readers must see that files are missing.
        if which.epoch >= self.newest_claim and not self.rotten:
            self.require("a manifest is written when all its files are whole", self.is_whole(manifest), which.folder)
        self.commits += 1
        if self.contents[self.held[which]].epoch != which.epoch:
            # Taken over from NVMe: its attempt stands on it, though it may not have written that down yet.
            self.base.setdefault(which.epoch, self.held[which])
        if which.epoch >= self.newest_claim:
            self.acked.add(which)
            self.ever_acked.add(which)
        else:
            self.void_commits += 1
            self.stale.add(which)
            looked = process.looked > self.last_put.get(which, -1) or process.name in ("late", "copy")
            self.require("a stale attempt looked at the fence before its manifest", looked, which.folder)

    def _deleted(self, which: StepId, name: str, sweeper: int) -> None:
        """``which`` lost an object; the manifest must go first, and never the newest one that counts."""
        manifest = self.manifests.get(which)
        if manifest is None:
            return
        if name != MANIFEST:
            # A stale attempt's manifest may land in a folder that is being swept as unfinished: it was never whole.
            # And a repeat of the manifest's put, late on its way, may bring it back once it was removed: the files then
            # go on going, readers miss them by the sizes listed, and the next sweep removes what is left.
            if which not in self.stale and (which, sweeper) not in self.let_go:
                gone = not self._is_there(which) or not self._was_whole(manifest, name)
                self.require("a manifest goes before its files", gone, which.folder)
            return
        self.let_go.add((which, sweeper))
        if not self.rotten and self.is_whole(manifest) and self.counts(which):
            left = self.newest()
            kept = left is not None and left.step >= which.step
            self.require("the newest that counts is never removed", kept, f"{which.folder}, leaving {left}")
            self._require_way_back(which, sweeper)

    def _require_way_back(self, gone: StepId, sweeper: int) -> None:
        """Check that roll backs, each of a bad step right after what was resumed from, find something without ``gone``.

        The first finds what is there of that age, the later ones something at least. What was decided before counts
        towards ``limit``: a removal that comes late, after a roll back, owes nothing to one more than that.
        """
        left, back_steps = {which.step for which in self.whole()}, self.bad_step.back_steps
        newest = at = max(left, default=0)
        promise, said = "what a roll back may need is never removed", f"{gone.folder}, leaving {sorted(left)}"
        # A stale one's removal may come late, when another branch is not as far yet.
        if sweeper == self.newest_claim:
            nearest = any(gone.step <= step <= max(gone.step, newest - back_steps) for step in left)
            self.require(promise, nearest, said)
        for _ in range(self.bad_step.limit - self.rolls.known()):
            older = [step for step in left if step <= at - back_steps]
            self.require(promise, bool(older) or gone.step > at - back_steps, said)
            at = max(older, default=0)

    def _was_whole(self, manifest: Manifest, removed: str) -> bool:
        return all(self._file_is_whole(manifest, file.name) for file in manifest.files if file.name != removed)

    def _fence_changed(self, key: str, epoch: int, kind: str, process: Process) -> None:
        if not kind:
            self.newest_claim = max(self.newest_claim, epoch)
        elif kind == "resume":
            said = json.loads(self.server.objects[key])
            self._resume_written(epoch, StepId(said["step"], said["epoch"]))
        elif kind == "rollback":
            stale = self.newest_claim > epoch
            self.rolls.record(epoch, json.loads(self.server.objects[key]), process.looked, stale)

    def _resume_written(self, epoch: int, source: StepId) -> None:
        if epoch not in self.rolls.resumed:
            self._require_begun_before(epoch, source.step)
        if epoch > max(self.rolls.resumed, default=0):
            # What a roll back voids from now on was lost on purpose.
            bound = max(source.step, self.rolls.excused(epoch))
            self.acked = {one for one in self.acked if one.epoch >= epoch or one.step <= bound}
        self.rolls.resumes(epoch, source.step)
        self.base.setdefault(epoch, self.held.get(source, ""))

    def _require_begun_before(self, epoch: int, step: int) -> None:
        """Check that training begins anew only where nothing that counts was ever as old as a roll back wants."""
        bound, now = self.rolls.excused(epoch), self.of_others(epoch)
        ever = [one for one in self.there[epoch].ever if one.step <= bound and self.is_on_path(self.held[one], now)]
        promise = "training begins anew only where there never was a checkpoint old enough"
        self.require(promise, step > 0 or not ever, f"{epoch}, of {ever}")

    def looks(self, epoch: int) -> None:
        """Hear that an attempt begins to look for what to resume from."""
        ever = frozenset(which for which in self.manifests if self.counts(which))
        self.there[epoch] = There(frozenset(self.whole()), ever)
        self.rolls.looks(epoch)

    def acked_step(self, at_most: float = math.inf) -> int:
        """Return the newest step that was acknowledged and not rolled back; 0 when there is none."""
        return max((one.step for one in self.acked if one.step <= at_most), default=0)

    def of_others(self, epoch: int) -> dict[int, str]:
        """Return the bases of all attempts but one."""
        return {other: name for other, name in self.base.items() if other != epoch}

    def claimed(self, epoch: int, before: int) -> None:
        """Check a claim that its claimer was told of; ``before``: the newest that was told when it began."""
        self.require("every claim of the fence is unique", epoch not in self.claims, f"{epoch} twice")
        self.require("a claim is newer than those before it", epoch > before, f"{epoch} after {before}")
        self.claims.append(epoch)

    def counts(self, which: StepId) -> bool:
        """Whether ``which`` lies on the way to where the newest attempt that began is."""
        return self.is_on_path(self.held[which])

    def is_on_path(self, name: str, base: Mapping[int, str] | None = None) -> bool:
        """Whether the newest attempt that began made this state, or stands on it. ``base``: of another moment."""
        base = self.base if base is None else base
        newest = max(base, default=0)
        if not newest or self.contents[name].epoch >= newest:
            return True
        at = base[newest]
        while at:
            if at == name:
                return True
            at = self.contents[at].parent
        return False

    def newest(self, at_most: float = math.inf) -> StepId | None:
        """Return the newest whole checkpoint in the store that counts, of step ``at_most`` or before."""
        return max((which for which in self.whole() if which.step <= at_most), default=None)

    def whole(self) -> list[StepId]:
        """Return the whole checkpoints in the store that count."""
        whole = (which for which in self.manifests if self._is_there(which) and self.is_whole(self.manifests[which]))
        return [which for which in whole if self.counts(which)]

    def is_whole(self, manifest: Manifest) -> bool:
        """Whether each of its files is in the store as it says."""
        return all(self._file_is_whole(manifest, file.name) for file in manifest.files)

    def _file_is_whole(self, manifest: Manifest, name: str) -> bool:
        data = self.server.objects.get(object_key(manifest.id, name))
        return data is not None and hashlib.sha256(data).hexdigest() == manifest.file(name).sha256

    def _is_there(self, which: StepId) -> bool:
        """Whether the manifest is in the store as it was written."""
        return self.server.objects.get(manifest_key(which)) == self.encoded[which]

    def copied(self, which: StepId, process: Process, hosts: frozenset[int]) -> None:
        """Hear that a node has its second copy of a save; ``hosts``: of its attempt."""
        said = self.copies.setdefault((which, process.epoch), set())
        said.add(process.host)
        older = [one for one in self.twice if one < which and one.epoch <= process.epoch]
        if said == hosts:
            self.twice[which] = Twice(len(hosts), hosts)
            # Promised is the newest that is there twice. From now on these nodes may let go of older saves, those of
            # earlier attempts on other sets of nodes too; nodes that are not among them keep their parts.
            for host in hosts:
                self.host_lost(host, older)
        if process.epoch < self.newest_claim:
            # A stale attempt that the store does not reach believes that its newer saves count.
            self.host_lost(process.host, older)

    def host_lost(self, host: int, saves: Iterable[StepId] | None = None) -> None:
        """Hear that what a host held (of ``saves``, else of all) is gone."""
        for which in list(self.twice) if saves is None else saves:
            known = self.twice[which]
            self.twice[which] = replace(known, hosts=known.hosts - {host})
        if saves is None:
            for said in self.copies.values():
                said.discard(host)

    def held_steps(self, epoch: int, hosts: frozenset[int]) -> frozenset[int]:
        """Return the steps that are there twice, count, and of whose nodes all but one at most are ``hosts``."""
        base = self.of_others(epoch)
        there = (which for which, one in self.twice.items() if len(one.hosts & hosts) >= one.size - 1)
        return frozenset(which.step for which in there if self.is_on_path(self.held[which], base))

    def held_restored(self, epoch: int, step: int, then: frozenset[int], now: frozenset[int]) -> None:
        """Check that a save which is there twice is found without any one of its nodes, though the store has it not.

        ``then``, ``now``: ``held_steps`` when the attempt began to look, and when it was done.
        """
        if not self.rotten:
            bound = self.rolls.excused(epoch)
            least = min(max((one for one in held if one <= bound), default=0) for held in (then, now))
            self.require("a save that is there twice outlives any one node", step >= least, f"{step}, not {least}")

    def restored(self, epoch: int, step: int, name: str) -> None:
        """Check what an attempt goes on from: never below what it could have proved, and of the one true past."""
        if not self.rotten:
            bound = self.rolls.excused(epoch)
            kept = step >= self.acked_step(bound)
            self.require("an acknowledged checkpoint is resumed from, or a newer one", kept, name)
            then = max((one.step for one in self.there[epoch].whole if one.step <= bound), default=0)
            now = self.newest_before(epoch, bound)
            least = min(then, now.step if now else 0)
            self.require("the newest provable one is resumed from", step >= least, f"{step}, not {least}")
        self.base.setdefault(epoch, name)

    def newest_before(self, epoch: int, at_most: float) -> StepId | None:
        """Return the newest that counts, as if the attempt of ``epoch`` had not begun."""
        mine = self.base.pop(epoch, None)
        try:
            return self.newest(at_most)
        finally:
            if mine is not None:
                self.base[epoch] = mine

    def of_the_past(self, epoch: int, name: str, then: Mapping[int, str]) -> None:
        """Check that a state which is about to be resumed from was not replaced by a later attempt.

        ``then``: the bases when the attempt began to look; a stale attempt may have written its own since.
        """
        kept = self.is_on_path(name, self.of_others(epoch)) or self.is_on_path(name, then)
        self.require("what a later attempt replaced never counts", kept, name)


def manifest_key(which: StepId) -> str:
    """Return the store's key of a manifest."""
    return object_key(which, MANIFEST)


def object_key(which: StepId, name: str) -> str:
    """Return the store's key of one object of a checkpoint."""
    return f"steelrail/run/key/steps/{which.folder}/{name}"
