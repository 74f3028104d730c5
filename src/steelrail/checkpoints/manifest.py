"""The manifest: what a checkpoint is made of. A checkpoint in the store exists when its manifest does. Pure."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Literal

from pydantic import ValidationError

from steelrail.artifacts.files import Artifact
from steelrail.checkpoints.layout import METADATA, StepId, is_checkpoint_file
from steelrail.errors import CheckpointError, must

Plain = str | int | float


class CheckpointFile(Artifact):
    """One file of torch's distributed checkpoint. ``rank`` wrote it; the node of ``node_rank`` keeps and uploads it."""

    name: str
    size_bytes: int
    sha256: str
    rank: int
    node_rank: int
    host: str


class RankState(Artifact):
    """Small state of one rank (random generators), opaque: base64 with the SHA-256 of its bytes."""

    rank: int
    sha256: str
    base64: str


class Manifest(Artifact):
    """``manifest.json`` in the store, ``local.json`` on NVMe. ``created``: Unix seconds; ``extra`` is the trainer's."""

    version: Literal[1] = 1
    run: str
    key: str
    step: int
    epoch: int
    tokens: int
    world_size: int
    num_nodes: int
    files: tuple[CheckpointFile, ...]
    parent_step: int | None
    parent_epoch: int | None
    created: float
    versions: dict[str, str]
    extra: dict[str, Plain]
    rank_states: tuple[RankState, ...] = ()

    @property
    def id(self) -> StepId:
        """Which checkpoint this is."""
        return StepId(self.step, self.epoch)

    @property
    def trained(self) -> StepId:
        """The save of the attempt that trained this state: of one taken over another, by its equal step the parent."""
        if self.parent_epoch is None or self.parent_step != self.step:
            return self.id
        return StepId(self.step, self.parent_epoch)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    def file(self, name: str) -> CheckpointFile:
        """Return the file of this name; it must be there."""
        return next(file for file in self.files if file.name == name)

    def files_of(self, node_rank: int) -> tuple[CheckpointFile, ...]:
        """Return the files that one node keeps."""
        return tuple(file for file in self.files if file.node_rank == node_rank)


def encode(manifest: Manifest) -> bytes:
    """Return the manifest as JSON with its own digest, so that a torn or changed one shows itself."""
    body = manifest.model_dump(mode="json")
    return json.dumps({"sha256": digest(manifest), "manifest": body}, indent=1).encode()


def digest(manifest: Manifest) -> str:
    """Return the hex SHA-256 of a manifest in canonical form."""
    text = json.dumps(manifest.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def decode(data: bytes, where: str) -> Manifest:
    """Return the manifest in ``data``, proved by its own digest. Raises ``CheckpointError``."""
    try:
        outer = json.loads(data)
        manifest = Manifest.model_validate_json(json.dumps(outer["manifest"]))
        if digest(manifest) == outer["sha256"]:
            return manifest
        fault = "of another digest"
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        kind = "not what this version writes" if isinstance(error, ValidationError) else "torn"
        fault = f"{kind} ({type(error).__name__})"
    raise CheckpointError(must("manifest", "whole and valid", fault, where, "an older checkpoint is taken"))


def fault_of(manifest: Manifest, run: str, key: str, place: StepId) -> str | None:
    """Return why a manifest cannot be what its place says, or none: identity, file names, completeness."""
    if (manifest.run, manifest.key) != (run, key):
        return f"is of run {manifest.run}, key {manifest.key}"
    if manifest.id != place:
        return f"says {manifest.id.folder}"
    names = [file.name for file in manifest.files]
    if len(set(names)) != len(names) or not all(is_checkpoint_file(name) for name in names):
        return "lists files of wrong or equal names"
    return None if METADATA in names else f"lists no {METADATA}"


def size_fault(manifest: Manifest, sizes: Mapping[str, int]) -> str | None:
    """Return which file is missing or of another size among ``sizes`` (name to bytes), or none."""
    for file in manifest.files:
        if file.name not in sizes:
            return f"{file.name} is missing"
        if sizes[file.name] != file.size_bytes:
            return f"{file.name} has {sizes[file.name]} bytes, not {file.size_bytes}"
    return None


def pack_state(rank: int, state: bytes) -> RankState:
    """Return a rank's small state as it goes into the manifest."""
    return RankState(rank=rank, sha256=hashlib.sha256(state).hexdigest(), base64=base64.b64encode(state).decode())


def rank_state(manifest: Manifest, rank: int, world_size: int) -> bytes | None:
    """Return the small state of ``rank``, or none when there is none or the world has another size."""
    if manifest.world_size != world_size:
        return None
    found = next((state for state in manifest.rank_states if state.rank == rank), None)
    if found is None:
        return None
    data = base64.b64decode(found.base64)
    if hashlib.sha256(data).hexdigest() != found.sha256:
        raise CheckpointError(must(f"state of rank {rank}", "of its digest", "not", manifest.id.folder, "remove it"))
    return data


def rehome(manifest: Manifest, epoch: int, holders: Mapping[str, int], hosts: Mapping[int, str]) -> Manifest:
    """Return the manifest of the same state under another attempt's ``epoch``; ``holders``: file name to its node.

    Its parent is the save of the attempt that trained it, however often it was taken over since.
    """
    files = tuple(
        file.model_copy(update={"node_rank": holders[file.name], "host": hosts[holders[file.name]]})
        for file in manifest.files
    )
    update = {"epoch": epoch, "files": files, "num_nodes": len(hosts)}
    parent = manifest.trained
    return manifest.model_copy(update={**update, "parent_step": parent.step, "parent_epoch": parent.epoch})
