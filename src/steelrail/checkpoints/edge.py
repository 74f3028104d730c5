"""Checkpoints of one attempt, as the ranks use them: restore once, save now and then, flush at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from steelrail.checkpoints import fence, retention
from steelrail.checkpoints.agree import Ranks
from steelrail.checkpoints.buddy import Copier, Copies
from steelrail.checkpoints.keep import NO_ROLL_BACK
from steelrail.checkpoints.layout import StepId, local_root
from steelrail.checkpoints.lineage import Rollback
from steelrail.checkpoints.manifest import Manifest, Plain
from steelrail.checkpoints.peers import Peers, meet
from steelrail.checkpoints.place import Emit, Home, no_beat
from steelrail.checkpoints.restore import RestoredFrom, restore
from steelrail.checkpoints.save import Draft, save_local
from steelrail.checkpoints.saving import Outcome, Saving
from steelrail.checkpoints.snapshot import HostCopy, Nested, State, flatten, local_bytes
from steelrail.checkpoints.upload import Status, Uploader
from steelrail.clients import clock
from steelrail.clients.disk import private_folder, remove_folder
from steelrail.clients.ranks import RankPlace
from steelrail.clients.store import Store
from steelrail.config import schema
from steelrail.errors import BusyError, CheckpointError, NodeError, StoreError, must
from steelrail.log import logger

log = logger(__name__)
TIMEOUT_SECONDS = 1800.0
CLOSE_SECONDS = 60.0
BEAT_SECONDS = 5.0


def open_checkpoints(
    store: Store,
    run: str,
    key: str,
    epoch: int,
    nvme: Path,
    place: RankPlace,
    settings: schema.Checkpoints,
    emit: Emit,
    timeout_seconds: float = TIMEOUT_SECONDS,
    beat: Callable[[], None] = no_beat,
    bad_step: schema.BadStep = NO_ROLL_BACK,
) -> Checkpoints:
    """Return the checkpoints of this attempt. Called by all ranks, after the default process group exists.

    ``nvme`` is ``clients.disk.node_root``; ``epoch`` was claimed by ``fence.claim``. ``timeout_seconds`` a decision.
    ``beat`` is called for every file of a restore, and every few seconds of a wait: a sign of life.
    ``bad_step``: how far before a bad step a roll back may have to go, and how often; what that may need is kept.
    """
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))
    home = Home(store, run, key, epoch, local_root(nvme, run, key), settings, beat, bad_step)
    ranks = Ranks(place, group)
    ranks.agree(lambda: private_folder(home.local))
    return Checkpoints(home, ranks, emit, timeout_seconds, meet(home, ranks))


class Checkpoints:
    """Restore, save, flush, close. All ranks call each at the same point; a state is (nested) names to tensors."""

    def __init__(
        self, home: Home, ranks: Ranks, emit: Emit, timeout_seconds: float, peers: Peers | None = None
    ) -> None:
        self._home, self._ranks, self._emit, self._timeout_seconds = home, ranks, emit, timeout_seconds
        self._peers = peers
        self._uploader = Uploader(home, ranks.place.node_rank, emit) if ranks.leads_node else None
        copies = peers is not None and home.settings.buddy and ranks.leads_node
        self._copier = Copier(home, peers, emit) if copies and peers is not None else None
        self._node_sweep = retention.NodeSweep(home)  # the saving thread's, once there are saves
        self._copy = HostCopy()
        self._saving: Saving | None = None
        self._newest: StepId | None = None
        self._durable: StepId | None = None
        self._not_durable: list[StepId] = []
        self._fault: str | None = None
        self._failed_saves: list[str] = []

    @property
    def save_fault(self) -> str | None:
        """Why the last save failed; none when it did not."""
        return self._failed_saves[-1] if self._failed_saves else None

    @property
    def upload_fault(self) -> str | None:
        """Why the store does not take uploads, as of the last save or flush; none when it does."""
        return self._fault

    @property
    def newest_durable(self) -> StepId | None:
        """The newest checkpoint known to be durable: on rank 0 now, elsewhere as of the last save or flush."""
        own = self._uploader.status.durable if self._uploader else None
        return max((one for one in (own, self._durable) if one is not None), default=None)

    @property
    def newest_durable_step(self) -> int | None:
        """Step of ``newest_durable``."""
        return self.newest_durable.step if self.newest_durable else None

    @property
    def behind(self) -> int:
        """Saves on NVMe that are newer than the newest durable one."""
        return len(self._not_durable)

    def rollbacks(self) -> tuple[Rollback, ...]:
        """Return what attempts before this one decided at bad steps: the same on every rank. Before ``restore``."""
        home = self._home
        return self._ranks.from_rank(0, lambda: fence.rollbacks(home.store, home.run, home.key))

    def restore(self, state: Nested, known: int = 0, rollbacks: Sequence[Rollback] = ()) -> RestoredFrom | None:
        """Fill ``state`` in place and return what it is, or none to start from step 0. See ``restore.restore``."""
        restored = restore(self._home, self._ranks, self._peers, flatten(state), known, rollbacks)
        self._copy.prepare(flatten(state))
        if restored is None:
            return None
        found, manifest = restored
        self._newest = manifest.id
        self._node_sweep.resumed(manifest.id)
        self._take_up(manifest)
        said = {"step": found.step, "where": found.where, "seconds": found.seconds, "epoch": found.epoch}
        self._emit("restore", **said, bytes=asdict(found.read))
        return found

    def save(
        self, state: Nested, step: int, tokens: int, extra: dict[str, Plain], rank_state: bytes | None = None
    ) -> float:
        """Save ``state`` as it is now; returns the seconds for which the caller was held up.

        Held up only while the state is copied to host memory (a GPU copies by itself: call ``before_change`` before the
        state changes), and while the save before is still being written.
        A save that fails on any rank counts nowhere; it is logged, and training goes on. Raises ``BusyError`` when a
        newer attempt has taken over, ``StoreError`` when more than ``max_behind`` saves wait for the store,
        ``NodeError`` when more than ``max_behind`` failed one after the other, and ``CheckpointError`` when the ranks
        cannot agree any more (one is gone).
        """
        began = clock.monotonic()
        self._settle(self._timeout_seconds)
        if self._newest == StepId(step, self._home.epoch):
            return clock.monotonic() - began
        copied, draft = self._copy.take(flatten(state)), Draft(step, tokens, extra, self._newest, rank_state)
        self._saving = Saving(step, lambda: self._save(copied, draft))
        if self.behind + 1 > self._home.settings.max_behind:
            self._settle(self._timeout_seconds)
            self._require_not_behind()
        stall_seconds = clock.monotonic() - began
        self._emit("save", step=step, bytes=local_bytes(copied), stall_seconds=stall_seconds)
        return stall_seconds

    def roll_back(self, step: int, at_most: int, first: int, why: str) -> None:
        """Have the next attempts go back before a bad ``step``: see ``lineage.Rollback``. Durable when this returns.

        The save under way is written first. Raises what ``save`` raises; ``StoreError`` also where nothing is recorded.
        """
        self._settle(self._timeout_seconds)
        home, decided = self._home, Rollback(self._home.epoch, step, at_most, first, why)
        self._ranks.from_rank(0, lambda: fence.record_rollback(home.store, home.run, home.key, decided))

    def before_change(self) -> None:
        """Order what a GPU does next after its copy for the last save. Called before the state changes, always."""
        self._copy.before_change()

    def written(self, timeout_seconds: float) -> bool:
        """Wait for this rank's save under way; returns whether it is over, well or not.

        Speaks to no other rank (the saving thread has their group), so ranks may differ in what they hear.
        """
        return self._saving is None or self._saving.wait(timeout_seconds) is not None

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until all saves are durable; returns, on all ranks alike, whether that came about in time.

        For the store only: have ``written`` true on all ranks before. A save still under way after
        ``timeout_seconds`` is a ``CheckpointError``.
        """
        deadline = clock.monotonic() + timeout_seconds
        self._settle(timeout_seconds)
        left = max(0.0, deadline - clock.monotonic())
        sent = self._uploader.flush(left) if self._uploader else True
        said = self._ranks.gather((sent, self._uploader.status if self._uploader else None))
        self._learn_statuses(tuple(status for _, status in said))
        return all(done for done, _ in said) and not self._not_durable

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """End the threads, once the last save is on NVMe. What is not uploaded stays there for the next attempt."""
        if self._saving is not None:
            self._saving.wait(timeout_seconds)
        if self._uploader is not None:
            self._uploader.close()
        if self._copier is not None:
            self._copier.close()
        if self._peers is not None:
            self._peers.close()

    def _save(self, copied: State, draft: Draft) -> Outcome:
        """Write to NVMe, then hand over for upload. Runs in the saving thread, on all ranks."""
        began = clock.monotonic()
        self._copy.wait()
        try:
            manifest = save_local(self._home, self._ranks, copied, draft)
        except (CheckpointError, NodeError) as error:
            self._discard(StepId(draft.step, self._home.epoch))
            return Outcome(None, f"{error}")
        own = (self._uploader.status if self._uploader else None, self._copier.copies if self._copier else None)
        said = self._ranks.gather(own)
        statuses = tuple(status for status, _ in said)
        if self._ranks.place.rank == 0:
            seconds = clock.monotonic() - began
            self._emit("durable", step=draft.step, where="nvme", bytes=manifest.size_bytes, seconds=seconds)
        if self._uploader is not None:
            self._hand_over(self._uploader, manifest, statuses[0])
            self._sweep(self._uploader, statuses[0], [copies for _, copies in said if copies is not None])
        return Outcome(manifest, None, statuses)

    def _discard(self, which: StepId) -> None:
        """Remove what a failed save left: a full NVMe must not stay full of it."""
        if self._ranks.leads_node:
            with contextlib.suppress(NodeError):
                remove_folder(self._home.folder(which))

    def _hand_over(self, uploader: Uploader, manifest: Manifest, leader: Status | None) -> None:
        uploader.admit(manifest, leader.working if leader else None)
        if self._copier is not None:
            self._copier.admit(manifest)

    def _sweep(self, uploader: Uploader, leader: Status | None, said: list[Copies]) -> None:
        """Remove old saves from NVMe. ``said``: by every node that copies."""
        try:
            if self._copier is None:
                retention.sweep_node(self._home, uploader.wanted)
            else:
                wanted = uploader.wanted | self._copier.copies.coming
                self._node_sweep.sweep(wanted, leader.durable if leader else None, said)
        except (OSError, NodeError) as error:
            log.warning("old saves could not be removed from NVMe: %s", error)

    def _settle(self, timeout_seconds: float) -> None:
        """Wait for the save that is being written, and learn what it came to."""
        if self._saving is None:
            return
        outcome, step = self._outcome_of(self._saving, timeout_seconds), self._saving.step
        if outcome is None:
            do = "look at NVMe and the network of the slowest node"
            raise CheckpointError(must(f"save of step {step}", f"over in {timeout_seconds:.0f} s", "not", "NVMe", do))
        self._saving = None
        if outcome.broken:
            do = "start a new attempt; see why a rank is gone or hangs"
            raise CheckpointError(
                must("ranks", "able to agree on a save", f"not ({outcome.fault})", f"step {step}", do)
            )
        if outcome.manifest is None:
            log.error("save of step %d failed and does not count; training goes on: %s", step, outcome.fault)
            self._emit("note", text=f"save of step {step} failed: {outcome.fault}")
            self._failed_saves.append(outcome.fault or "unknown")
            self._require_saves()
            return
        self._failed_saves.clear()
        self._newest = outcome.manifest.id
        self._not_durable.append(outcome.manifest.id)
        self._learn_statuses(outcome.statuses)

    def _outcome_of(self, saving: Saving, timeout_seconds: float) -> Outcome | None:
        deadline = clock.monotonic() + timeout_seconds
        while True:
            left = deadline - clock.monotonic()
            outcome = saving.wait(max(0.0, min(BEAT_SECONDS, left)))
            if outcome is not None or left <= BEAT_SECONDS:
                return outcome
            self._home.beat()

    def _learn_statuses(self, statuses: tuple[Status | None, ...]) -> None:
        leader = statuses[0]
        if leader is not None and leader.durable is not None:
            self._durable = leader.durable
            self._not_durable = [one for one in self._not_durable if one > leader.durable]
        self._fault = next((status.fault for status in statuses if status is not None and status.fault), None)
        if any(status is not None and status.fenced for status in statuses):
            raise BusyError(self._fault or "a newer attempt has taken over")

    def _require_not_behind(self) -> None:
        limit = self._home.settings.max_behind
        if self.behind > limit:
            fault = f"{self.behind} ({self._fault or 'uploads are slower than saves'})"
            do = "mend the store and run again: the newest save is on NVMe"
            raise StoreError(
                must("saves that wait for the store", f"at most {limit}", fault, repr(self._home.store), do)
            )

    def _require_saves(self) -> None:
        """A node that cannot save must not train for days as if it could."""
        limit, failed = self._home.settings.max_behind, len(self._failed_saves)
        if failed > limit:
            fault, do = f"{failed} ({self.save_fault})", "mend what the save names and run again"
            raise NodeError(must("saves that failed in a row", f"at most {limit}", fault, self._home.local, do))

    def _take_up(self, manifest: Manifest) -> None:
        """Have what was restored uploaded if it was on NVMe only, and copied if its files lie as in a save of ours."""
        place, taken_over = self._ranks.place, manifest.epoch == self._home.epoch
        if not taken_over:
            self._durable = manifest.id
        else:
            self._not_durable.append(manifest.id)
            if self._uploader is not None:
                self._uploader.admit(manifest, None)
        alike = (manifest.world_size, manifest.num_nodes) == (place.world_size, place.num_nodes)
        if self._copier is not None and (taken_over or alike):
            self._copier.admit(manifest)
