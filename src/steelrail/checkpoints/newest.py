"""The newest checkpoint that can be proved: what store and present nodes hold, and why the rest is not taken."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from steelrail.checkpoints import fence
from steelrail.checkpoints.layout import LOCAL_COMMIT, MANIFEST, StepId, parse_folder
from steelrail.checkpoints.lineage import Resumed, is_void
from steelrail.checkpoints.manifest import Manifest, decode, digest, fault_of, size_fault
from steelrail.checkpoints.place import Home
from steelrail.clients.disk import on_disk
from steelrail.clients.store import MissingObjectError, Store, StoredObject
from steelrail.errors import CheckpointError, must

MAX_MANIFEST_BYTES = 64 * 2**20


@dataclass(frozen=True)
class StoreView:
    """What the store says of a key. ``manifests``: complete by size, newest first. ``committed``: once durable."""

    manifests: tuple[Manifest, ...]
    resumed: tuple[Resumed, ...]
    committed: tuple[StepId, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class LocalView:
    """What one node's NVMe holds: manifests, and of each the files that are there with their size."""

    node_rank: int
    saves: tuple[tuple[Manifest, frozenset[str]], ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Candidate:
    """A checkpoint that may be provable. ``holders``: file name to the node ranks that have it."""

    manifest: Manifest
    in_store: bool
    holders: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @property
    def on_nodes(self) -> bool:
        """Whether the present nodes together hold every file."""
        return all(self.holders.get(file.name) for file in self.manifest.files)


def survey_store(store: Store, run: str, key: str) -> StoreView:
    """Return what the store holds of this key. Raises ``StoreError`` when it cannot say."""
    objects = objects_by_checkpoint(store, run, key)
    folders = {which: {name: one.size_bytes for name, one in found.items()} for which, found in objects.items()}
    manifests, reasons = [], []
    for which in sorted((which for which, sizes in folders.items() if MANIFEST in sizes), reverse=True):
        try:
            manifests.append(read_manifest(store, run, key, which, folders[which]))
        except (CheckpointError, MissingObjectError) as error:
            reasons.append(f"{which.folder} in the store: {error}")
    resumed, committed = fence.resumes(store, run, key), fence.commits(store, run, key)
    bad = tuple(which for which, sizes in folders.items() if MANIFEST in sizes)
    return StoreView(tuple(manifests), resumed, committed + bad, tuple(reasons))


def steps_prefix(store: Store, run: str, key: str) -> str:
    """Return the prefix of all checkpoints of a key."""
    return store.key(run, key, "steps") + "/"


def objects_by_checkpoint(store: Store, run: str, key: str) -> dict[StepId, dict[str, StoredObject]]:
    """Return the objects of every checkpoint folder in the store, by name. Raises ``StoreError`` when it cannot say."""
    prefix = steps_prefix(store, run, key)
    folders: dict[StepId, dict[str, StoredObject]] = {}
    for found in store.list(prefix):
        folder, _, name = found.key.removeprefix(prefix).partition("/")
        which = parse_folder(folder)
        if which is not None:
            folders.setdefault(which, {})[name] = found
    return folders


def read_manifest(store: Store, run: str, key: str, which: StepId, sizes: Mapping[str, int]) -> Manifest:
    """Return a checkpoint's manifest, complete by the listed ``sizes``. Raises ``CheckpointError`` when it is not."""
    where = store.key(run, key, "steps", which.folder, MANIFEST)
    manifest = decode(store.get(where, MAX_MANIFEST_BYTES), where)
    fault = fault_of(manifest, run, key, which) or size_fault(manifest, sizes)
    if fault is not None:
        raise CheckpointError(must("checkpoint", "complete", f"not ({fault})", where, "an older one is taken"))
    return manifest


def survey_node(home: Home, node_rank: int) -> LocalView:
    """Return what this node's NVMe holds of this key.

    Raises ``NodeError`` when the disk cannot say: that a save cannot be read now is no evidence against it.
    """
    saves, reasons = [], []
    with on_disk(home.local):
        folders = sorted(home.local.iterdir()) if home.local.is_dir() else []
    for folder in folders:
        which = parse_folder(folder.name)
        if which is None or not (folder / LOCAL_COMMIT).is_file():
            continue
        try:
            with on_disk(folder):
                saves.append(_read_local(home, which))
        except CheckpointError as error:
            reasons.append(f"{which.folder} on node {node_rank}: {error}")
    return LocalView(node_rank, tuple(saves), tuple(reasons))


def _read_local(home: Home, which: StepId) -> tuple[Manifest, frozenset[str]]:
    folder = home.folder(which)
    manifest = decode((folder / LOCAL_COMMIT).read_bytes(), str(folder))
    fault = fault_of(manifest, home.run, home.key, which)
    if fault is not None:
        raise CheckpointError(must("local commit", "of this folder", f"not ({fault})", folder, "remove the folder"))
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    return manifest, frozenset(file.name for file in manifest.files if sizes.get(file.name) == file.size_bytes)


def candidates(view: StoreView, nodes: Sequence[LocalView]) -> tuple[list[Candidate], list[str]]:
    """Return what may be resumed from, newest first, and why the rest may not. Pure."""
    found: dict[str, Candidate] = {}
    for manifest in view.manifests:
        found[digest(manifest)] = Candidate(manifest, in_store=True)
    for node in nodes:
        for manifest, names in node.saves:
            known = found.get(digest(manifest), Candidate(manifest, in_store=False))
            found[digest(manifest)] = _with_holder(known, node.node_rank, names)
    reasons = [*view.reasons, *(reason for node in nodes for reason in node.reasons)]
    taken = []
    for one in sorted(found.values(), key=lambda one: (one.manifest.id, one.in_store), reverse=True):
        fault = _fault(one, view.resumed)
        if fault is None:
            taken.append(one)
        else:
            reasons.append(f"{one.manifest.id.folder}: {fault}")
    return taken, reasons


def _with_holder(known: Candidate, node_rank: int, names: frozenset[str]) -> Candidate:
    holders = {name: known.holders.get(name, frozenset()) | {node_rank} for name in names}
    return Candidate(known.manifest, known.in_store, {**known.holders, **holders})


def _fault(one: Candidate, resumed: Sequence[Resumed]) -> str | None:
    # One that was taken over is the same state under two names: it counts while either does.
    if is_void(one.manifest.id, resumed) and is_void(one.manifest.trained, resumed):
        return "a later attempt resumed from before it"
    return None if one.in_store or one.on_nodes else "is on NVMe only, and not all of it on the present nodes"


def old_enough(found: Sequence[Candidate], at_most: int | None) -> tuple[list[Candidate], list[str]]:
    """Return those of step ``at_most`` or before (none: all), and why the rest may not be resumed from. Pure."""
    young = [one for one in found if at_most is not None and one.manifest.step > at_most]
    reasons = [f"{one.manifest.id.folder}: a bad step was rolled back to step {at_most} or before" for one in young]
    return [one for one in found if one not in young], reasons


def must_not_start_over(view: StoreView, tried: Sequence[Candidate], at_most: int | None = None) -> bool:
    """Whether there were checkpoints, so that starting from step 0 would lose work unsaid. Pure.

    ``at_most``: those of later steps are rolled back, lost on purpose. The first commit of an attempt is its oldest.
    """
    limit = math.inf if at_most is None else at_most
    committed = any(which.step <= limit and not is_void(which, view.resumed) for which in view.committed)
    # An attempt that began from scratch after others had resumed did so by this very rule.
    last = max(view.resumed, key=lambda one: one.epoch, default=None)
    return committed or bool(tried) or (last is not None and 0 < last.step <= limit)
