"""Files of torch's distributed checkpoint: what is read of them, and what never runs."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from steelrail.checkpoints import torch_files
from steelrail.checkpoints.snapshot import HostCopy, flatten, local_bytes
from steelrail.checkpoints.torch_files import FolderReader, FolderWriter, TensorPlanner, files_needed, read_metadata
from steelrail.errors import CheckpointError

STATE = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16), "c": torch.tensor(3)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("step")
    save(dict(STATE), storage_writer=FolderWriter(path), no_dist=True)
    return path


def metadata_of(folder: Path) -> Any:
    return read_metadata((folder / ".metadata").read_bytes(), [path.name for path in folder.iterdir()], "here")


def test_tensors_come_back_equal(folder: Path) -> None:
    state = {name: torch.zeros_like(value) for name, value in STATE.items()}
    load(dict(state), storage_reader=FolderReader(folder, metadata_of(folder)), planner=TensorPlanner(), no_dist=True)
    assert all(torch.equal(state[name], STATE[name]) for name in STATE)


def test_metadata_names_no_path_of_the_machine(folder: Path) -> None:
    assert str(folder.parent).encode() not in (folder / ".metadata").read_bytes()


def test_only_the_files_that_a_rank_reads_are_needed(folder: Path) -> None:
    assert files_needed({"a": STATE["a"]}, metadata_of(folder)) == {"__0_0.distcp"}


@pytest.mark.parametrize(
    ("free", "expected", "words"), [(4096, OSError, "No space left on device"), (2**30, RuntimeError, "unexpected pos")]
)
def test_full_disk_is_called_so_whatever_the_zip_writer_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, expected: type[Exception], words: str
) -> None:
    def end_badly(*_: Any) -> None:
        raise RuntimeError("unexpected pos 704 vs 598")

    monkeypatch.setattr(torch_files.FileSystemWriter, "write_data", end_badly)
    monkeypatch.setattr(torch_files, "free_bytes", lambda _: free)
    with pytest.raises(expected, match=words):
        FolderWriter(tmp_path).write_data(None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("state", [{"absent": torch.zeros(1)}, {"a": torch.zeros(5, 5)}])
def test_state_of_another_model_is_refused(folder: Path, state: dict[str, torch.Tensor]) -> None:
    with pytest.raises(CheckpointError, match="checkpoint must be of this model's state"):
        files_needed(state, metadata_of(folder))


class Call:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    "bomb",
    [
        Call(os.system, "touch ran"),
        Call(eval, "open('ran', 'w')"),
        Call(Path.touch, Path("ran")),
        Call(getattr, torch.Size, "numel"),
        Call(torch.load, "ran"),
        Call(__import__, "os"),
    ],
)
def test_hostile_pickle_does_not_run(bomb: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="has no place in a checkpoint"):
        read_metadata(pickle.dumps(bomb), [], "here")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [b"", b"\x80", pickle.dumps({}), pickle.dumps(None), b"cos\nsystem\n(S'true'\ntR."])
def test_anything_but_metadata_is_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError, match="of a checkpoint of tensors"):
        read_metadata(data, [], "here")


def test_metadata_that_points_outside_is_refused(folder: Path) -> None:
    found = metadata_of(folder)
    next(iter(found.storage_data.values())).relative_path = "../../secret"
    with pytest.raises(CheckpointError, match="points to files outside its manifest"):
        read_metadata(pickle.dumps(found), ["__0_0.distcp"], "here")


def test_checkpoint_with_pickled_objects_is_refused(folder: Path) -> None:
    found = metadata_of(folder)
    found.state_dict_metadata["a"] = BytesStorageMetadata()
    with pytest.raises(CheckpointError, match=r"not \("):
        read_metadata(pickle.dumps(found), ["__0_0.distcp"], "here")
    with pytest.raises(CheckpointError, match="tensors only"):
        TensorPlanner().load_bytes(
            type("Item", (), {"dest_index": found.state_dict_metadata and Index()})(), io.BytesIO()
        )


class Index:
    fqn = "a"


def test_copy_stands_while_the_state_changes() -> None:
    state, copy = {"a": torch.ones(3), "s": torch.tensor(1.0)}, HostCopy()
    taken = copy.take(state)
    state["a"].add_(1)
    state["s"].add_(1)
    assert [float(taken["a"][0]), float(taken["s"])] == [1.0, 1.0]
    assert float(copy.take(state)["a"][0]) == 2.0
    assert local_bytes(taken) == 16


def test_copy_follows_a_state_of_another_shape() -> None:
    copy = HostCopy()
    copy.take({"a": torch.ones(3)})
    assert torch.equal(copy.take({"a": torch.zeros(2, 2)})["a"], torch.zeros(2, 2))


def test_nested_names_are_joined() -> None:
    assert list(flatten({"model": {"w": torch.ones(1)}, "step": torch.ones(1)})) == ["model.w", "step"]


def test_anything_but_a_tensor_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"state model\.step must be a tensor, is int"):
        flatten({"model": {"step": 3}})
