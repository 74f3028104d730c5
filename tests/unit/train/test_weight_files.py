import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from steelrail.config.schema import Model
from steelrail.errors import InputError
from steelrail.train.names import to_hugging_face
from steelrail.train.shapes import parameter_shapes
from steelrail.train.weight_files import check_weights

SIZES = {"dim": 8, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "ffn_dim": 12, "vocab_size": 10}
MODEL = Model.model_validate(SIZES)


def tensors(**changes: Any) -> dict[str, Any]:
    """Zeros of every tensor, by Hugging Face's names; ``changes`` by their first word (none: left out)."""
    whole = {to_hugging_face(name): np.zeros(shape, np.float32) for name, shape in parameter_shapes(MODEL).items()}
    other = {name: changes[word] for name in whole for word in changes if word in name}
    return {name: value for name, value in {**whole, **other}.items() if value is not None}


def folder_with(folder: Path, config: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A folder of two files with their index, as published weights are."""
    whole = tensors(**changes)
    names = sorted(whole)
    files = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in files.items():
        save_file({name: whole[name] for name in held}, folder / file)
    places = {name: file for file, held in files.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_folder_that_fits_is_taken(tmp_path: Path) -> None:
    theirs = {"num_attention_heads": 2, "num_key_value_heads": 1, "rope_theta": 500000.0, "rms_norm_eps": 1e-5}
    assert check_weights(MODEL, folder_with(tmp_path, theirs)) == []


def test_one_file_without_an_index_is_taken(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "model.safetensors")
    assert check_weights(MODEL, tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embed": np.zeros((11, 8), np.float32)}, r"embed_tokens.weight must be of shape \(10, 8\), is \(11, 8\)"),
        ({"lm_head": None}, "tensor lm_head.weight must be listed, is missing"),
        ({"k_proj": np.zeros((4, 8), np.int8)}, r"k_proj.weight must be one of .*F32.*, is I8 .*not quantised"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_weights(MODEL, folder_with(tmp_path, **changes))


def test_other_heads_are_refused_though_every_shape_fits(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"heads \(num_attention_heads\) must be 2 as in the run file, is 4"):
        check_weights(MODEL, folder_with(tmp_path, {"num_attention_heads": 4}))


def test_other_constants_are_said(tmp_path: Path) -> None:
    (warning,) = check_weights(MODEL, folder_with(tmp_path, {"rope_theta": 10000.0}))
    assert warning.startswith("the weights were trained with rope_theta 10000.0, the run file says 500000.0")


def test_a_file_that_was_not_downloaded_whole_is_refused(tmp_path: Path) -> None:
    file = folder_with(tmp_path) / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"must be a safetensors file.*model-00002"):
        check_weights(MODEL, tmp_path)


def test_no_folder_and_a_torn_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be a safetensors file"):
        check_weights(MODEL, tmp_path / "nowhere")
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{torn")
    with pytest.raises(InputError, match="must be a safetensors file"):
        check_weights(MODEL, tmp_path)


def test_an_index_never_leads_out_of_its_folder(tmp_path: Path) -> None:
    index = {"weight_map": {"model.embed_tokens.weight": "../other/model.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="in the folder itself"):
        check_weights(MODEL, tmp_path)


def test_the_head_node_needs_no_torch_for_it(tmp_path: Path) -> None:
    folder_with(tmp_path)
    code = (
        "import sys; from pathlib import Path; from steelrail.config.schema import Model;"
        "from steelrail.train.weight_files import check_weights;"
        f"check_weights(Model.model_validate({SIZES}), Path({str(tmp_path)!r})); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
