"""torch's distributed checkpoint on a folder, made safe to read from a bucket that others may write.

``.metadata`` is a pickle: it is read by an unpickler that knows only the plain records of a checkpoint of tensors. Such
a checkpoint needs no other pickle (tensors are read with ``weights_only``); one that asks for one is refused.
"""

from __future__ import annotations

import errno
import io
import os
import pickle
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    Metadata,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from steelrail.checkpoints.snapshot import State
from steelrail.clients.disk import free_bytes
from steelrail.errors import CheckpointError, must

# With less than this left, a disk is why a write failed.
_FULL_BYTES = 2**20
_DCP = "torch.distributed.checkpoint"
_ALLOWED = {
    (f"{_DCP}.metadata", name)
    for name in (
        "Metadata",
        "MetadataIndex",
        "TensorStorageMetadata",
        "ChunkStorageMetadata",
        "TensorProperties",
        "StorageMeta",
        "_MEM_FORMAT_ENCODING",
    )
} | {
    (f"{_DCP}.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
}


class _Unpickler(pickle.Unpickler):
    """Knows the records of a checkpoint of tensors, torch's dtypes, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _enum_member
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a checkpoint")


def _enum_member(kind: object, name: str) -> Enum:
    """Stand in for ``getattr``, by which Python 3.11 pickles an enum's member; gives members of that one enum only."""
    if kind is not _MEM_FORMAT_ENCODING:
        raise pickle.UnpicklingError("getattr has no place in a checkpoint")
    return _MEM_FORMAT_ENCODING[name]


def read_metadata(data: bytes, names: Iterable[str], where: str) -> Metadata:
    """Return the metadata of a checkpoint of files ``names``; runs nothing. Raises ``CheckpointError``."""
    try:
        found = _Unpickler(io.BytesIO(data)).load()
        fault = _fault_of(found, set(names))
    except MemoryError:
        raise  # of this host, not of the metadata
    except Exception as error:  # noqa: BLE001 - a hostile pickle may raise anything; all of it means the same
        fault = f"{type(error).__name__}: {error}"
    if fault is not None:
        do = "an older checkpoint is taken; see who else can write there"
        raise CheckpointError(must(".metadata", "of a checkpoint of tensors", f"not ({fault})", where, do))
    assert isinstance(found, Metadata)
    return found


def _fault_of(found: object, names: set[str]) -> str | None:
    if not isinstance(found, Metadata) or not isinstance(found.storage_data, dict):
        return "no metadata"
    if not all(isinstance(entry, TensorStorageMetadata) for entry in found.state_dict_metadata.values()):
        return "it holds more than tensors"
    infos = found.storage_data.values()
    if not all(info.relative_path in names and not info.transform_descriptors for info in infos):
        return "it points to files outside its manifest"
    return None


class FolderWriter(FileSystemWriter):
    """torch's writer, one file per rank, flushed; its metadata names no path of this machine."""

    def __init__(self, folder: Path) -> None:
        # No copy-ahead: the state is in host memory, and torch's overlapping loader would open GPU 0 from every rank.
        super().__init__(folder, sync_files=True, per_thread_copy_ahead=0, overwrite=False)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's file. A full disk is an ``OSError`` that says so."""
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            # torch's zip writer, ending after a write that failed, raises its own "unexpected pos" in that one's place.
            if free_bytes(Path(self.path)) < _FULL_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path)) from error
            raise

    def storage_meta(self) -> StorageMeta:
        """Return what the metadata says of its place: the folder's own name."""
        return StorageMeta(checkpoint_id=Path(self.path).name, save_id=self.save_id)


class FolderReader(FileSystemReader):
    """torch's reader, with metadata that has been proved and read already."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(folder)
        self._metadata = metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the given metadata; the file in the folder is not read."""
        if self._metadata.storage_meta is None:
            self._metadata.storage_meta = StorageMeta()
        self._metadata.storage_meta.load_id = self.load_id
        return self._metadata


class TensorPlanner(DefaultLoadPlanner):
    """torch's planner, which never unpickles."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        """Refuse: the default would unpickle ``value``."""
        raise CheckpointError(
            must("checkpoint", "of tensors only", f"pickled {read_item.dest_index.fqn}", "load", "remove it")
        )


def files_needed(state: State, metadata: Metadata) -> set[str]:
    """Return the files that this rank reads to fill ``state``. Raises ``CheckpointError`` when the state is another."""
    planner = TensorPlanner()
    try:
        planner.set_up_planner(dict(state), metadata, False)
        items = planner.create_local_plan().items
    except torch.OutOfMemoryError:
        raise  # a RuntimeError too, but of this device
    except (RuntimeError, ValueError, KeyError) as error:
        do = "resume with the model and optimizer that wrote it"
        raise CheckpointError(must("checkpoint", "of this model's state", f"not ({error})", "load", do)) from error
    if any(item.type is LoadItemType.BYTE_IO for item in items):
        raise CheckpointError(must("checkpoint", "of tensors only", "one with pickles", "load", "remove it"))
    return {metadata.storage_data[item.storage_index].relative_path for item in items}
