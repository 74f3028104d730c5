"""Save to NVMe: every rank writes its file, every node the same manifest; it counts only if all did.

One folder per (step, epoch). ``local.json`` is written last on each node; a save on NVMe counts for a later
attempt when every node's is there and every file verifies.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save

from steelrail.artifacts.files import put_whole, sync_folder
from steelrail.checkpoints.agree import Ranks
from steelrail.checkpoints.layout import LOCAL_COMMIT, METADATA, StepId, rank_files
from steelrail.checkpoints.manifest import CheckpointFile, Manifest, Plain, RankState, encode, pack_state
from steelrail.checkpoints.place import Home
from steelrail.checkpoints.snapshot import State
from steelrail.checkpoints.torch_files import FolderWriter
from steelrail.clients import clock
from steelrail.clients.disk import on_disk, private_folder, remove_folder, sha256_file
from steelrail.errors import CheckpointError, must


@dataclass(frozen=True)
class Draft:
    """What a save holds beside its tensors. ``extra`` of rank 0 counts; ``rank_state`` is each rank's own."""

    step: int
    tokens: int
    extra: dict[str, Plain]
    parent: StepId | None
    rank_state: bytes | None = None


def save_local(home: Home, ranks: Ranks, state: State, draft: Draft) -> Manifest:
    """Write ``state`` (in host memory) to NVMe and return its manifest, the same on every rank.

    Called by all ranks. Raises on all of them, in bounded time, what failed on any; then nothing counts.
    """
    which = StepId(draft.step, home.epoch)
    folder = home.folder(which)
    ranks.agree(lambda: _make_room(ranks, folder))
    _write_tensors(folder, state, ranks)
    metadata = ranks.from_rank(0, (folder / METADATA).read_bytes)
    written = ranks.agree(lambda: _describe(ranks, folder, metadata, draft.rank_state))
    manifest = ranks.from_rank(0, lambda: _manifest(home, ranks, draft, written))
    ranks.agree(lambda: commit_local(ranks, folder, manifest))
    return manifest


def commit_local(ranks: Ranks, folder: Path, manifest: Manifest) -> None:
    """Write this node's ``local.json``; everything it speaks of must be on disk before."""
    if ranks.leads_node:
        with on_disk(folder):
            sync_folder(folder)
            put_whole(folder / LOCAL_COMMIT, encode(manifest))


def _make_room(ranks: Ranks, folder: Path) -> None:
    """Make the folder; what a failed save of the same step left in it is removed."""
    if ranks.leads_node:
        remove_folder(folder)
        private_folder(folder)


def _write_tensors(folder: Path, state: State, ranks: Ranks) -> None:
    try:
        save(dict(state), storage_writer=FolderWriter(folder), process_group=ranks.group)
    except CheckpointException as error:
        said = "; ".join(f"rank {rank}: {fault[0]}" for rank, fault in error.failures.items())
        raise CheckpointError(
            must("save", "written on every rank", f"failed ({said})", folder, "see NVMe space")
        ) from error


def _describe(
    ranks: Ranks, folder: Path, metadata: bytes, state: bytes | None
) -> tuple[list[CheckpointFile], RankState | None]:
    """Return this rank's files with digests, and put the metadata beside them on every node."""
    place = ranks.place
    paths = sorted(folder.glob(rank_files(place.rank)))
    if ranks.leads_node:
        with on_disk(folder):
            put_whole(folder / METADATA, metadata)
        paths += [folder / METADATA] if place.rank == 0 else []
    files = [
        CheckpointFile(
            name=path.name,
            size_bytes=path.stat().st_size,
            sha256=sha256_file(path),
            rank=place.rank,
            node_rank=place.node_rank,
            host=place.host,
        )
        for path in paths
    ]
    return files, None if state is None else pack_state(place.rank, state)


def _manifest(
    home: Home, ranks: Ranks, draft: Draft, written: list[tuple[list[CheckpointFile], RankState | None]]
) -> Manifest:
    return Manifest(
        run=home.run,
        key=home.key,
        step=draft.step,
        epoch=home.epoch,
        tokens=draft.tokens,
        world_size=ranks.place.world_size,
        num_nodes=ranks.place.num_nodes,
        files=tuple(file for files, _ in written for file in files),
        parent_step=draft.parent.step if draft.parent else None,
        parent_epoch=draft.parent.epoch if draft.parent else None,
        created=clock.now(),
        versions={"torch": torch.__version__, "python": platform.python_version()},
        extra=draft.extra,
        rank_states=tuple(state for _, state in written if state is not None),
    )
