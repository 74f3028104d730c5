"""Restore: the newest checkpoint that can be proved, by all ranks together, or an error. Never silently from step 0.

Every file is verified by its digest on the node that reads it; what is missing or damaged there comes from the store. A
checkpoint that is on NVMe only is taken over: the same files under this attempt's epoch, then uploaded like any save.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import load

from steelrail.artifacts.files import sync_folder
from steelrail.checkpoints import fence
from steelrail.checkpoints.agree import Ranks
from steelrail.checkpoints.layout import METADATA, StepId
from steelrail.checkpoints.manifest import CheckpointFile, Manifest, Plain, rank_state, rehome
from steelrail.checkpoints.newest import (
    Candidate,
    LocalView,
    StoreView,
    candidates,
    must_not_start_over,
    survey_node,
    survey_store,
)
from steelrail.checkpoints.place import Home
from steelrail.checkpoints.save import commit_local
from steelrail.checkpoints.snapshot import State
from steelrail.checkpoints.torch_files import FolderReader, TensorPlanner, files_needed, read_metadata
from steelrail.clients import clock
from steelrail.clients.disk import on_disk, private_folder, remove_folder, sha256_file
from steelrail.clients.store import MissingObjectError
from steelrail.errors import CheckpointError, NodeError, must
from steelrail.log import logger

log = logger(__name__)
MAX_METADATA_BYTES = 2**30


@dataclass(frozen=True)
class RestoredFrom:
    """What training goes on from. ``where``: nvme, or store if any file came from it. ``reasons``: why none newer."""

    step: int
    epoch: int
    tokens: int
    extra: dict[str, Plain]
    rank_state: bytes | None
    where: str
    seconds: float
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Uploads:
    """How ``restore`` uploads: ``publish`` queues a checkpoint on this node, ``wait`` returns when it is durable."""

    publish: Callable[[Manifest], None]
    wait: Callable[[StepId], None]


def restore(home: Home, ranks: Ranks, state: State, uploads: Uploads) -> RestoredFrom | None:
    """Fill ``state`` in place from the newest provable checkpoint; returns none when this key never had one.

    Called by all ranks, before training. Raises ``CheckpointError`` when there were checkpoints and none can be proved,
    ``StoreError`` when the store cannot be asked, ``NodeError`` when a rank could not do its part: that is no evidence
    against a checkpoint, and an older one would void it, so the next attempt begins with the same one.
    """
    began = clock.monotonic()
    view = ranks.from_rank(0, lambda: survey_store(home.store, home.run, home.key))
    tried, reasons = candidates(view, _survey_nodes(home, ranks))
    for candidate in tried:
        try:
            manifest, where = _restore_one(home, ranks, state, candidate, uploads)
        except CheckpointError as error:
            reasons.append(f"{candidate.manifest.id.folder}: {error}")
            _say(ranks, reasons[-1])
            continue
        _record(home, ranks, candidate.manifest.id)
        return _restored(ranks, manifest, where, clock.monotonic() - began, reasons)
    _require_fresh(home, view, tried, reasons)
    _record(home, ranks, None)
    return None


def _record(home: Home, ranks: Ranks, source: StepId | None) -> None:
    ranks.from_rank(0, lambda: fence.record_resume(home.store, home.run, home.key, home.epoch, source))


def _survey_nodes(home: Home, ranks: Ranks) -> list[LocalView]:
    views = ranks.agree(lambda: survey_node(home, ranks.place.node_rank) if ranks.leads_node else None)
    return [view for view in views if view is not None]


def _restored(ranks: Ranks, manifest: Manifest, where: str, seconds: float, reasons: list[str]) -> RestoredFrom:
    return RestoredFrom(
        step=manifest.step,
        epoch=manifest.epoch,
        tokens=manifest.tokens,
        extra=dict(manifest.extra),
        rank_state=rank_state(manifest, ranks.place.rank, ranks.place.world_size),
        where=where,
        seconds=seconds,
        reasons=tuple(reasons),
    )


def _require_fresh(home: Home, view: StoreView, tried: list[Candidate], reasons: list[str]) -> None:
    if must_not_start_over(view, tried):
        said = "; ".join(reasons) or "every manifest is gone"
        do = "restore the store's objects, or give the run another name to start over"
        where = home.store.key(home.run, home.key, "steps")
        raise CheckpointError(must("some checkpoint", "provable", f"none ({said})", where, do))


def _say(ranks: Ranks, reason: str) -> None:
    if ranks.place.rank == 0:
        log.error("checkpoint not taken: %s", reason)


def _restore_one(
    home: Home, ranks: Ranks, state: State, candidate: Candidate, uploads: Uploads
) -> tuple[Manifest, str]:
    """Load one candidate; returns its manifest and whence it came. Raises ``CheckpointError`` on all ranks alike."""
    manifest, in_store = candidate.manifest, candidate.in_store
    if not in_store:
        manifest = _take_over(home, ranks, candidate)
    metadata = _read_proven_metadata(home, ranks, manifest, in_store)
    needed = ranks.agree(lambda: (ranks.place.node_rank, files_needed(state, metadata)))
    mine = {name for node_rank, names in needed if node_rank == ranks.place.node_rank for name in names}
    if not in_store:
        in_store = _publish(home, ranks, manifest, mine, uploads)
    fetched = ranks.agree(lambda: _bring(home, manifest, _share(ranks, mine), in_store))
    _load(home, ranks, state, manifest, metadata)
    return manifest, "store" if any(fetched) else "nvme"


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


def _read_proven_metadata(home: Home, ranks: Ranks, manifest: Manifest, in_store: bool) -> Metadata:
    """Return the metadata, read on the node that keeps it (from the store: on rank 0) and given to all."""
    file = manifest.file(METADATA)
    leaders = ranks.gather((ranks.place.node_rank, ranks.place.local_rank))
    source = 0 if in_store else leaders.index((file.node_rank, 0))

    def read() -> bytes:
        _bring(home, manifest, [file.name], in_store)
        data = (home.folder(manifest.id) / file.name).read_bytes()
        _require_digest(file, hashlib.sha256(data).hexdigest(), manifest)
        return data

    data = ranks.from_rank(source, read)
    return ranks.each(lambda: read_metadata(data, (file.name for file in manifest.files), manifest.id.folder))


def _share(ranks: Ranks, names: Iterable[str]) -> list[str]:
    """Return this rank's part of its node's files."""
    return sorted(names)[ranks.place.local_rank :: ranks.place.ranks_per_node]


def _bring(home: Home, manifest: Manifest, names: Iterable[str], in_store: bool) -> int:
    """Have verified files in the checkpoint's folder on this node; returns the bytes that came from the store."""
    folder, fetched = private_folder(home.folder(manifest.id)), 0
    for file in (manifest.file(name) for name in names):
        path = folder / file.name
        home.beat()
        if path.is_file() and path.stat().st_size == file.size_bytes and sha256_file(path) == file.sha256:
            continue
        if in_store:
            fetched += _fetch(home, manifest, file, path)
            home.beat()
        _require_digest(file, sha256_file(path) if path.is_file() else "missing", manifest)
    return fetched


def _fetch(home: Home, manifest: Manifest, file: CheckpointFile, path: Path) -> int:
    """Have a file from the store. One that is not there is evidence against the checkpoint; a store away is none."""
    try:
        return home.store.get_file(home.object_key(manifest.id, file.name), path)
    except MissingObjectError as error:
        raise CheckpointError(f"{error}") from error


def _require_digest(file: CheckpointFile, found: str, manifest: Manifest) -> None:
    if found != file.sha256:
        where = f"{manifest.id.folder}/{file.name}"
        raise CheckpointError(must("SHA-256", file.sha256[:12], found[:12], where, "an older checkpoint is taken"))


def _take_over(home: Home, ranks: Ranks, candidate: Candidate) -> Manifest:
    """Put a checkpoint that is on NVMe only under this attempt's epoch: verified, linked, committed on every node."""
    old = candidate.manifest
    hosts = {place.node_rank: place.host for place in ranks.gather(ranks.place)}
    owners = {name: min(nodes) for name, nodes in candidate.holders.items()}
    new = rehome(old, home.epoch, owners, hosts)
    ranks.agree(lambda: _link(home, ranks, candidate, new))
    ours = [file.name for file in new.files_of(ranks.place.node_rank)]
    ranks.agree(lambda: _bring(home, new, _share(ranks, ours), in_store=False))
    ranks.agree(lambda: commit_local(ranks, home.folder(new.id), new))
    return new


def _link(home: Home, ranks: Ranks, candidate: Candidate, new: Manifest) -> None:
    if not ranks.leads_node or candidate.manifest.id == new.id:
        return
    source, target = home.folder(candidate.manifest.id), home.folder(new.id)
    remove_folder(target)
    private_folder(target)
    with on_disk(target):
        for name, nodes in candidate.holders.items():
            if ranks.place.node_rank in nodes:
                (target / name).hardlink_to(source / name)
        sync_folder(target)


def _publish(home: Home, ranks: Ranks, manifest: Manifest, needed: set[str], uploads: Uploads) -> bool:
    """Have the checkpoint uploaded; returns whether it is in the store: waited for only if a node lacks a file."""
    folder = home.folder(manifest.id)
    lacking = any(ranks.gather(not all((folder / name).is_file() for name in needed)))
    uploads.publish(manifest)
    if lacking:
        ranks.from_rank(0, lambda: uploads.wait(manifest.id))
    return lacking
