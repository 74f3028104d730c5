"""Carries out what is kept (``keep``): in the store after each commit, and on a node's NVMe after each save."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set

from steelrail.checkpoints import fence
from steelrail.checkpoints.buddy import Copies, newest_held, soon_held
from steelrail.checkpoints.keep import Held, Verdict, heldout_loss_of, judge
from steelrail.checkpoints.layout import LOCAL_COMMIT, MANIFEST, StepId, parse_folder
from steelrail.checkpoints.newest import objects_by_checkpoint, read_manifest, steps_prefix
from steelrail.checkpoints.place import Home
from steelrail.clients import clock
from steelrail.clients.disk import remove_folder
from steelrail.clients.store import MissingObjectError, Store, StoredObject
from steelrail.errors import CheckpointError, SteelrailError
from steelrail.log import logger

log = logger(__name__)
LOCAL_KEPT = 2
STALE_UPLOAD_SECONDS = 86_400.0


def sweep_store_or_log(home: Home, durable: StepId) -> None:
    """Remove from the store what is not kept, after ``durable`` was committed; a failure is logged."""
    try:
        sweep_store(home, durable)
    except (SteelrailError, OSError) as error:
        log.warning("old checkpoints could not be removed from the store: %s", error)


def sweep_store(home: Home, durable: StepId) -> None:
    """Remove from the store what ``keep.judge`` lets go. Raises ``StoreError``, ``BusyError``."""
    store, run, key = home.store, home.run, home.key
    held = survey(store, run, key)
    for one in held:
        if one.has_manifest and one.fault is not None:
            log.warning("%s in the store cannot be proved: %s", one.which.folder, one.fault)
    # What was just committed must be seen whole: else the listing lags, or it is the newest that is damaged.
    if all(one.which != durable or one.fault is not None for one in held):
        log.warning("nothing is removed from the store: %s cannot be proved there", durable.folder)
        return
    resumed = fence.resumes(store, run, key)
    verdicts = judge(held, resumed, home.epoch, home.settings, bad_step=home.bad_step)
    remove(store, run, key, home.epoch, verdicts)
    store.abort_unfinished(steps_prefix(store, run, key), clock.now() - STALE_UPLOAD_SECONDS)


def survey(store: Store, run: str, key: str) -> tuple[Held, ...]:
    """Return every checkpoint folder of a key in the store. Raises ``StoreError`` when it cannot say."""
    folders = objects_by_checkpoint(store, run, key)
    return tuple(_held(store, run, key, which, folders[which]) for which in sorted(folders, reverse=True))


def _held(store: Store, run: str, key: str, which: StepId, objects: Mapping[str, StoredObject]) -> Held:
    sizes = {name: one.size_bytes for name, one in objects.items()}
    changed = max((one.modified for one in objects.values() if one.modified is not None), default=None)
    names, size_bytes = tuple(sorted(sizes)), sum(sizes.values())
    if MANIFEST not in sizes:
        return Held(which, names, size_bytes, "its upload was not finished", changed=changed)
    try:
        manifest = read_manifest(store, run, key, which, sizes)
    except (CheckpointError, MissingObjectError) as error:
        return Held(which, names, size_bytes, f"{error}", changed=changed)
    return Held(which, names, size_bytes, None, heldout_loss_of(manifest.extra), manifest.created, changed)


def remove(store: Store, run: str, key: str, epoch: int, verdicts: Iterable[Verdict]) -> None:
    """Remove what is not kept, oldest first. Raises ``BusyError`` once an attempt newer than ``epoch`` is there."""
    for one in sorted((one for one in verdicts if not one.keeps), key=lambda one: one.held.which):
        # Looked at again before each: a newer attempt may be reading by now.
        fence.require_newest(store, run, key, epoch)
        _remove(store, run, key, one.held)
        log.info("removed %s from the store: %s", one.held.which.folder, one.why)


def _remove(store: Store, run: str, key: str, held: Held) -> None:
    """Remove a folder, its manifest first: what is half removed must not look complete."""
    for name in sorted(held.names, key=lambda name: name != MANIFEST):
        store.delete(store.key(run, key, "steps", held.which.folder, name))


class NodeSweep:
    """What stays on this node's NVMe until a newer save is as safe: durable, or twice there on every node's word."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._safe: StepId | None = None
        self._taken_over: StepId | None = None

    def resumed(self, which: StepId) -> None:
        """Hear what this attempt goes on from. One taken over from NVMe may be there once only: it is not safe yet."""
        if which.epoch == self._home.epoch:
            self._taken_over = which
        else:
            self._safe = which

    def sweep(self, wanted: Set[StepId], durable: StepId | None, said: Collection[Copies]) -> None:
        """Remove what is not ``wanted``, nor among the newest, nor the last that is safe. ``said``: by every node."""
        self._safe = max((one for one in (self._safe, newest_held(said), durable) if one is not None), default=None)
        kept = {self._safe} if self._safe is not None else self._perhaps_safe()
        sweep_node(self._home, wanted | soon_held(said) | kept)

    def _perhaps_safe(self) -> set[StepId]:
        """Return what was taken over and all before it: which of them was there twice went with the earlier attempt."""
        if self._taken_over is None:
            return set()
        committed = {which for which, committed in on_node(self._home).items() if committed}
        return {which for which in committed if which.epoch < self._home.epoch} | {self._taken_over}


def on_node(home: Home) -> dict[StepId, bool]:
    """Return the saves on this node's NVMe, and of each whether it was committed.

    Those of a newer attempt are none of this one's, which is stale then and does not know what the newer one needs.
    """
    there = (which for path in home.local.iterdir() if (which := parse_folder(path.name)) is not None)
    return {which: (home.folder(which) / LOCAL_COMMIT).is_file() for which in there if which.epoch <= home.epoch}


def sweep_node(home: Home, wanted: Set[StepId]) -> None:
    """Remove old saves, and the copies in them, from this node's NVMe.

    Kept are the newest two commits, those of ``wanted``, and newer ones.
    """
    for which in local_removals(on_node(home), wanted):
        remove_folder(home.folder(which))


def local_removals(there: Mapping[StepId, bool], wanted: Set[StepId]) -> list[StepId]:
    """Return which folders go from NVMe; ``there`` says of each whether it was committed. Pure.

    Newest by attempt first: steps of an older attempt that a later one replaced are not newer because they are higher.
    """

    def age(which: StepId) -> tuple[int, int]:
        return (which.epoch, which.step)

    kept = sorted((which for which, committed in there.items() if committed), key=age)[-LOCAL_KEPT:]
    if not kept:
        return []
    return [which for which in there if which not in kept and which not in wanted and age(which) < age(kept[-1])]
