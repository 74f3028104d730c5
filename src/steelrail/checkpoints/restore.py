"""Restore: the newest checkpoint that can be proved, by all ranks together, or an error. Never silently from step 0.

Every file is verified by its digest on the node that reads it (``bring``): NVMe of the present nodes first, their own
files and the copies that they keep of their neighbours', then the store. A checkpoint that is on NVMe only is taken
over: the same files under this attempt's epoch, to be uploaded like any save.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import load

from steelrail.artifacts.files import put_whole, sync_folder
from steelrail.checkpoints import fence
from steelrail.checkpoints.agree import Ranks
from steelrail.checkpoints.bring import (
    Read,
    Sources,
    bring_all,
    bring_from_store,
    bring_near,
    require_digest,
    require_found,
)
from steelrail.checkpoints.layout import LOCAL_COMMIT, METADATA, StepId
from steelrail.checkpoints.lineage import Rollback, newest_allowed
from steelrail.checkpoints.manifest import Manifest, Plain, encode, rank_state, rehome
from steelrail.checkpoints.newest import (
    Candidate,
    LocalView,
    StoreView,
    candidates,
    must_not_start_over,
    old_enough,
    survey_node,
    survey_store,
)
from steelrail.checkpoints.peers import Peers
from steelrail.checkpoints.place import Home
from steelrail.checkpoints.save import commit_local
from steelrail.checkpoints.snapshot import State
from steelrail.checkpoints.torch_files import FolderReader, TensorPlanner, files_needed, read_metadata
from steelrail.clients import clock
from steelrail.clients.disk import on_disk, private_folder, remove_folder
from steelrail.errors import CheckpointError, NodeError, must
from steelrail.log import logger
from steelrail.units import show_bytes, show_seconds

log = logger(__name__)


@dataclass(frozen=True)
class RestoredFrom:
    """What training goes on from; ``world_size``: of the attempt that saved it.

    ``where``: store if any rank read from it, else peer if any file came from another node, else nvme; ``read``: the
    bytes that this rank brought. ``reasons``: why none newer.
    """

    step: int
    epoch: int
    tokens: int
    world_size: int
    extra: dict[str, Plain]
    rank_state: bytes | None
    where: str
    seconds: float
    reasons: tuple[str, ...]
    read: Read = field(default_factory=Read)


def restore(
    home: Home,
    ranks: Ranks,
    peers: Peers | None,
    state: State,
    known: int = 0,
    rollbacks: Sequence[Rollback] = (),
) -> tuple[RestoredFrom, Manifest] | None:
    """Fill ``state`` in place from the newest provable checkpoint; returns none when this key never had one.

    After a roll back: the newest that is old enough, and none when the key never had one of that age.

    The manifest is of this attempt's epoch when the checkpoint was on NVMe only: then it wants to be uploaded.
    ``known``: a step that the caller knows was durable once (0: of none), whatever the store says now; one that is too
    young after a roll back is not missed.
    Called by all ranks, before training. Raises ``CheckpointError`` when there were checkpoints and none can be proved,
    ``StoreError`` when the store cannot be asked, ``BusyError`` when a newer attempt's save is there already,
    ``NodeError`` when a rank could not do its part: that is no evidence
    against a checkpoint, and an older one would void it, so the next attempt begins with the same one.
    """
    began = clock.monotonic()
    view = ranks.from_rank(0, lambda: survey_store(home.store, home.run, home.key))
    tried, reasons = candidates(view, _survey_nodes(home, ranks))
    _require_not_after(home, ranks, tried)
    at_most = newest_allowed(rollbacks, view.resumed)
    tried, too_young = old_enough(tried, at_most)
    reasons += too_young
    for candidate in tried:
        try:
            manifest, read = _restore_one(home, ranks, peers, state, candidate)
        except CheckpointError as error:
            reasons.append(f"{candidate.manifest.id.folder}: {error}")
            _say(ranks, reasons[-1])
            continue
        _record(home, ranks, candidate.manifest.id)
        return _restored(ranks, manifest, read, clock.monotonic() - began, reasons), manifest
    _require_fresh(home, view, tried, reasons, known, at_most)
    _record(home, ranks, None)
    return None


def _record(home: Home, ranks: Ranks, source: StepId | None) -> None:
    ranks.from_rank(0, lambda: fence.record_resume(home.store, home.run, home.key, home.epoch, source))


def _require_not_after(home: Home, ranks: Ranks, tried: Sequence[Candidate]) -> None:
    """End an attempt that slept through a newer one's save: taken over, that would count as older than it is.

    The way back of the lineage would then leave out what the newer one resumed from, and with it what that voided.
    """
    if any(one.manifest.epoch > home.epoch for one in tried):
        ranks.from_rank(0, lambda: fence.require_newest(home.store, home.run, home.key, home.epoch))


def _survey_nodes(home: Home, ranks: Ranks) -> list[LocalView]:
    views = ranks.agree(lambda: survey_node(home, ranks.place.node_rank) if ranks.leads_node else None)
    return [view for view in views if view is not None]


def _restored(ranks: Ranks, manifest: Manifest, read: Read, seconds: float, reasons: list[str]) -> RestoredFrom:
    total = sum(ranks.gather(read), Read())
    if ranks.place.rank == 0:
        near, far, store = (show_bytes(size_bytes) for size_bytes in (total.nvme, total.peer, total.store))
        said = "restored step %d: %s from NVMe, %s from other nodes, %s from the store, in %s"
        log.info(said, manifest.step, near, far, store, show_seconds(seconds))
    return RestoredFrom(
        step=manifest.step,
        epoch=manifest.epoch,
        tokens=manifest.tokens,
        world_size=manifest.world_size,
        extra=dict(manifest.extra),
        rank_state=rank_state(manifest, ranks.place.rank, ranks.place.world_size),
        where=total.where,
        seconds=seconds,
        reasons=tuple(reasons),
        read=read,
    )


def _require_fresh(
    home: Home, view: StoreView, tried: list[Candidate], reasons: list[str], known: int, at_most: int | None
) -> None:
    # What another clone of the run rolled back is still in this one's events.
    missed = known > 0 and (at_most is None or known <= at_most)
    if missed or must_not_start_over(view, tried, at_most):
        said = "; ".join(reasons) or ("every manifest is gone" + (f", step {known} was durable" if known else ""))
        do = "restore the store's objects, or give the run another name to start over"
        where = home.store.key(home.run, home.key, "steps")
        raise CheckpointError(must("some checkpoint", "provable", f"none ({said})", where, do))


def _say(ranks: Ranks, reason: str) -> None:
    if ranks.place.rank == 0:
        log.error("checkpoint not taken: %s", reason)


def _restore_one(
    home: Home, ranks: Ranks, peers: Peers | None, state: State, candidate: Candidate
) -> tuple[Manifest, Read]:
    """Load one candidate; returns its manifest and what came whence. Raises ``CheckpointError`` on all ranks alike."""
    manifest = candidate.manifest
    sources = Sources(home, manifest, candidate.holders, candidate.in_store, peers)
    proven, read = _prove_metadata(sources, ranks)
    metadata = ranks.each(lambda: read_metadata(proven, (file.name for file in manifest.files), manifest.id.folder))
    needed = dict(_needed(ranks, state, metadata))
    if not candidate.in_store:
        needed = _with_orphans(candidate, needed)
    read += bring_all(sources, ranks, needed[ranks.place.node_rank])
    if not candidate.in_store:
        manifest = _take_over(home, ranks, candidate, needed)
    ranks.agree(lambda: _commit(home, ranks, manifest, proven))
    _load(home, ranks, state, manifest, metadata)
    return manifest, read


def _needed(ranks: Ranks, state: State, metadata: Metadata) -> Mapping[int, set[str]]:
    """Return the files that the ranks of each node read."""
    needed: dict[int, set[str]] = {}
    for node_rank, names in ranks.agree(lambda: (ranks.place.node_rank, files_needed(state, metadata))):
        needed.setdefault(node_rank, set()).update(names)
    return needed


def _with_orphans(candidate: Candidate, needed: Mapping[int, set[str]]) -> dict[int, set[str]]:
    """Return ``needed`` with files that no rank reads given to a node that has them: a checkpoint is kept whole."""
    missed = {file.name for file in candidate.manifest.files}.difference({METADATA}, *needed.values())
    homes = {name: min(candidate.holders[name]) for name in missed}
    return {node: names | {name for name in missed if homes[name] == node} for node, names in needed.items()}


def _load(home: Home, ranks: Ranks, state: State, manifest: Manifest, metadata: Metadata) -> None:
    reader = FolderReader(home.folder(manifest.id), metadata)
    try:
        load(dict(state), storage_reader=reader, planner=TensorPlanner(), process_group=ranks.group)
    except CheckpointException as error:
        # Every byte was proved before: what fails now is a rank's memory or device, or a fault of ours.
        failed = error.failures.get(ranks.place.rank)
        ranks.each(lambda: _require_loaded(failed[0] if failed else None, manifest))
        raise


def _require_loaded(fault: BaseException | None, manifest: Manifest) -> None:
    if fault is not None:
        said = f"not ({type(fault).__name__}: {fault})"
        do = "see the trace; the next attempt begins with this checkpoint again"
        raise NodeError(must("proven checkpoint", "loadable", said, manifest.id.folder, do)) from fault


def _prove_metadata(sources: Sources, ranks: Ranks) -> tuple[bytes, Read]:
    """Return the metadata, read by rank 0 and given to all, and what this rank brought for it."""
    file = sources.manifest.file(METADATA)
    near = ranks.from_rank(0, lambda: bring_near(sources, [METADATA]))
    require_found(sources, ranks, near.lost if ranks.place.rank == 0 else ())

    def read() -> tuple[bytes, Read]:
        came = near.read + bring_from_store(sources, near.lacking)
        with on_disk(sources.path(file)):
            data = sources.path(file).read_bytes()
        require_digest(file, hashlib.sha256(data).hexdigest(), sources.manifest)
        return data, came

    data, came = ranks.from_rank(0, read)
    return data, came if ranks.place.rank == 0 else Read()


def _commit(home: Home, ranks: Ranks, manifest: Manifest, metadata: bytes) -> None:
    """Have this node's files count from now on, for the next attempt and for what is kept."""
    folder = home.folder(manifest.id)
    if ranks.leads_node and not (_is(folder / METADATA, metadata) and _is(folder / LOCAL_COMMIT, encode(manifest))):
        with on_disk(folder):
            put_whole(folder / METADATA, metadata)
        commit_local(ranks, folder, manifest)


def _is(path: Path, data: bytes) -> bool:
    with on_disk(path):
        return path.is_file() and path.read_bytes() == data


def _take_over(home: Home, ranks: Ranks, candidate: Candidate, kept: Mapping[int, set[str]]) -> Manifest:
    """Put a checkpoint that is on NVMe only under this attempt's epoch. ``kept``: the files proved on each node."""
    hosts = {place.node_rank: place.host for place in ranks.gather(ranks.place)}
    owners = {name: min(node for node in kept if name in kept[node]) for name in set().union(*kept.values())}
    new = rehome(candidate.manifest, home.epoch, {**owners, METADATA: 0}, hosts)
    ranks.agree(lambda: _link(home, ranks, candidate.manifest, new))
    return new


def _link(home: Home, ranks: Ranks, old: Manifest, new: Manifest) -> None:
    """Give this node's files, copies for its neighbours among them, a second name under the new epoch."""
    if not ranks.leads_node or old.id == new.id:
        return
    source, target = home.folder(old.id), home.folder(new.id)
    remove_folder(target)
    private_folder(target)
    with on_disk(target):
        for file in old.files:
            if (source / file.name).is_file():
                (target / file.name).hardlink_to(source / file.name)
        sync_folder(target)
