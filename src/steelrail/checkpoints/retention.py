"""What is kept: the newest durable checkpoints in the store, the newest saves on NVMe. Never the last provable one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from steelrail.checkpoints import fence
from steelrail.checkpoints.layout import LOCAL_COMMIT, MANIFEST, StepId, parse_folder
from steelrail.checkpoints.lineage import Resumed, is_void
from steelrail.checkpoints.newest import list_folders, read_manifest
from steelrail.checkpoints.place import Home
from steelrail.clients import clock
from steelrail.clients.disk import remove_folder
from steelrail.errors import CheckpointError, SteelrailError
from steelrail.log import logger

log = logger(__name__)
LOCAL_KEPT = 2
STALE_UPLOAD_SECONDS = 86_400.0


@dataclass(frozen=True)
class Removal:
    """One folder of the store that goes, and why."""

    which: StepId
    why: str


def plan(
    folders: Mapping[StepId, bool], provable: Sequence[StepId], resumed: Sequence[Resumed], epoch: int, keep_last: int
) -> list[Removal]:
    """Return what goes from the store. Pure.

    ``folders``: each checkpoint folder and whether it has a manifest; ``provable``: those whose files are all there.
    Kept are the ``keep_last`` newest provable ones that count, all that is newer, and everything of later attempts.
    """
    valid = sorted((which for which in provable if not is_void(which, resumed)), reverse=True)
    if not valid:
        return []
    oldest_kept = valid[:keep_last][-1]
    removals = []
    for which, has_manifest in sorted(folders.items()):
        if which.epoch > epoch:
            continue
        if not has_manifest and (which.epoch < epoch or which < valid[0]):
            removals.append(Removal(which, "an upload that was not finished"))
        elif has_manifest and is_void(which, resumed):
            removals.append(Removal(which, "replaced by a later attempt"))
        elif has_manifest and which < oldest_kept:
            removals.append(Removal(which, f"older than the newest {keep_last}"))
    return removals


def sweep_store_or_log(home: Home, durable: StepId) -> None:
    """Remove from the store what ``plan`` says, after ``durable`` was committed; a failure is logged."""
    try:
        sweep_store(home, durable)
    except (SteelrailError, OSError) as error:
        log.warning("old checkpoints could not be removed from the store: %s", error)


def sweep_store(home: Home, durable: StepId) -> None:
    """Remove from the store what ``plan`` says. Raises ``StoreError``."""
    store, run, key = home.store, home.run, home.key
    folders = list_folders(store, run, key)
    resumed = fence.resumes(store, run, key)
    provable = _provable(home, folders, durable, resumed)
    held = {which: MANIFEST in names for which, names in folders.items()}
    for removal in plan(held, provable, resumed, home.epoch, home.settings.keep_last):
        # Looked at again before each: a newer attempt may be reading by now.
        fence.require_newest(store, run, key, home.epoch)
        _remove(home, removal.which, folders[removal.which])
        log.info("removed %s from the store: %s", removal.which.folder, removal.why)
    store.abort_unfinished(store.key(run, key, "steps") + "/", clock.now() - STALE_UPLOAD_SECONDS)


def _provable(
    home: Home, folders: Mapping[StepId, Mapping[str, int]], durable: StepId, resumed: Sequence[Resumed]
) -> list[StepId]:
    """Return the newest ``keep_last`` folders that count and are complete by sizes, ``durable`` among them."""
    found: list[StepId] = []
    for which in sorted((which for which, names in folders.items() if MANIFEST in names), reverse=True):
        if len(found) == home.settings.keep_last:
            break
        if is_void(which, resumed):
            continue
        try:
            read_manifest(home.store, home.run, home.key, which, folders[which])
            found.append(which)
        except CheckpointError as error:
            log.warning("%s", error)
    return found if durable in found else [*found, durable]


def _remove(home: Home, which: StepId, names: Mapping[str, int]) -> None:
    """Remove a folder, its manifest first: what is half removed must not look complete."""
    for name in sorted(names, key=lambda name: name != MANIFEST):
        home.store.delete(home.object_key(which, name))


def sweep_node(home: Home, wanted: Set[StepId]) -> None:
    """Remove old saves from this node's NVMe: kept are the newest two commits, those of ``wanted``, and newer ones."""
    there = [which for path in home.local.iterdir() if (which := parse_folder(path.name)) is not None]
    for which in local_removals({which: (home.folder(which) / LOCAL_COMMIT).is_file() for which in there}, wanted):
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
