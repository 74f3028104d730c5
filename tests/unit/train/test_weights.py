import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from steelrail.train.hugging_face import weight_files


def test_weights_read_by_three_ranks_and_written_again_are_the_same(ran: dict[str, Any]) -> None:
    first, second = (Path(ran[name]["root"]) / "export" for name in ("files", "read"))
    names = json.loads((first / "model.safetensors.index.json").read_text())["weight_map"]
    whole = load_file(second / "model.safetensors")
    assert whole.keys() == names.keys()
    for name, file in names.items():
        assert torch.equal(load_file(first / file)[name], whole[name])


def test_a_run_that_begins_without_its_weights_says_so(ran: dict[str, Any]) -> None:
    assert "InputError: weights must be a safetensors file, is not" in ran["missing"]["errors"][0]


def test_files_of_an_export_keep_to_their_size(ran: dict[str, Any]) -> None:
    files = sorted((Path(ran["files"]["root"]) / "export").glob("*.safetensors"))
    assert len(files) > 2
    assert all(sum(one.nbytes for one in load_file(file).values()) <= 6000 for file in files)
    assert not list(Path(ran["files"]["root"]).glob(".export*"))


def test_a_tensor_larger_than_a_file_stands_alone() -> None:
    files = weight_files({"a": 4, "b": 20, "c": 5, "d": 5}, max_bytes=10)
    assert [file.parameters for file in files] == [("a",), ("b",), ("c", "d")]
    assert files[1].name == "model-00002-of-00003.safetensors"
