import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from steelrail.errors import InputError
from steelrail.train.hugging_face import weight_files
from steelrail.train.weights import check_weights

SHAPES = {"embedding.weight": (10, 4), "norm.weight": (4,)}


def folder_with(tmp_path: Path, **changes: tuple[int, ...] | None) -> Path:
    shapes = {"model.embed_tokens.weight": (10, 4), "model.norm.weight": (4,)}
    shapes |= {f"model.{name}.weight": shape for name, shape in changes.items()}  # type: ignore[misc]
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items() if shape is not None}
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


def test_weights_read_by_three_ranks_and_written_again_are_the_same(ran: dict[str, Any]) -> None:
    first, second = (Path(ran[name]["root"]) / "export" for name in ("files", "read"))
    names = json.loads((first / "model.safetensors.index.json").read_text())["weight_map"]
    whole = load_file(second / "model.safetensors")
    assert whole.keys() == names.keys()
    for name, file in names.items():
        assert torch.equal(load_file(first / file)[name], whole[name])


def test_files_of_an_export_keep_to_their_size(ran: dict[str, Any]) -> None:
    files = sorted((Path(ran["files"]["root"]) / "export").glob("*.safetensors"))
    assert len(files) > 2
    assert all(sum(one.nbytes for one in load_file(file).values()) <= 6000 for file in files)
    assert not list(Path(ran["files"]["root"]).glob(".export*"))


def test_a_tensor_larger_than_a_file_stands_alone() -> None:
    files = weight_files({"a": 4, "b": 20, "c": 5, "d": 5}, max_bytes=10)
    assert [file.parameters for file in files] == [("a",), ("b",), ("c", "d")]
    assert files[1].name == "model-00002-of-00003.safetensors"


def test_a_folder_that_fits_is_taken(tmp_path: Path) -> None:
    check_weights(SHAPES, folder_with(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embed_tokens": (11, 4)}, r"embed_tokens.weight must be of shape \(10, 4\), is \(11, 4\)"),
        ({"norm": None}, "tensor model.norm.weight must be there, is missing"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_weights(SHAPES, folder_with(tmp_path, **changes))


def test_no_folder_and_a_torn_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be a safetensors file"):
        check_weights(SHAPES, tmp_path / "nowhere")
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{torn")
    with pytest.raises(InputError, match="must be a safetensors file"):
        check_weights(SHAPES, tmp_path)


def test_an_index_never_leads_out_of_its_folder(tmp_path: Path) -> None:
    index = {"weight_map": {"model.embed_tokens.weight": "../other/model.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="in the folder itself"):
        check_weights(SHAPES, tmp_path)
