"""A Hugging Face folder of safetensors: which file holds which tensor, and whether all of a model is there.

Indexes and headers only, and without torch: a head node checks 140 GB in about a second.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from steelrail.config.schema import Model
from steelrail.errors import InputError, must
from steelrail.train.hugging_face import INDEX, SINGLE
from steelrail.train.names import to_hugging_face
from steelrail.train.shapes import parameter_shapes

# What may be cast to float32 masters; packed or quantised values would turn into other numbers unsaid.
_FLOATS = ("BF16", "F16", "F32", "F64")


def check_weights(model: Model, folder: Path) -> list[str]:
    """Return warnings about weights that a model can start from, trained with other constants than the run file's.

    Raises ``InputError`` when a parameter is missing, torn, of another shape or no float, or the heads are others.
    """
    shapes = {to_hugging_face(name): shape for name, shape in parameter_shapes(model).items()}
    places = files_of(folder, shapes)
    for file in dict.fromkeys(places.values()):
        with open_file(file, "numpy") as tensors:
            for theirs in (name for name, place in places.items() if place == file):
                tensor_slice(tensors, theirs, shapes[theirs], file)
    return _check_config(model, folder / "config.json")


def files_of(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """Return the file of each tensor, by Hugging Face's names. Raises ``InputError`` for one that is not listed."""
    index = folder / INDEX
    if not index.exists():
        return dict.fromkeys(names, folder / SINGLE)
    weight_map = _weight_map(index)
    return {name: folder / _listed(weight_map, name, index) for name in names}


def open_file(file: Path, framework: Literal["pt", "numpy"]) -> Any:
    """Return safetensors' handle of a file. Raises ``InputError`` when it is missing, torn or something else."""
    try:
        return safe_open(str(file), framework=framework)
    except (OSError, SafetensorError) as error:
        fault = " ".join(str(error).split())[:200]
        raise InputError(must("weights", "a safetensors file", f"not ({fault})", file, "download it again")) from error


def tensor_slice(tensors: Any, theirs: str, shape: tuple[int, ...], file: Path) -> Any:
    """Return the slice from which rows of a tensor are read. Raises ``InputError`` unless it is as it should be."""
    if theirs not in tensors.keys():  # noqa: SIM118 - a safetensors handle is no mapping
        raise InputError(must(f"tensor {theirs}", "there", "missing", file, "name a folder of Llama weights, whole"))
    part = tensors.get_slice(theirs)
    found = tuple(part.get_shape())
    if found != shape:
        do = "make train.model (vocab_size, dim, heads, ffn_dim) that of the weights"
        raise InputError(must(f"tensor {theirs}", f"of shape {shape}", found, file, do))
    if part.get_dtype() not in _FLOATS:
        do = "name a folder of weights that are not quantised"
        raise InputError(must(f"tensor {theirs}", f"one of {', '.join(_FLOATS)}", part.get_dtype(), file, do))
    return part


def _listed(weight_map: Mapping[str, str], theirs: str, index: Path) -> str:
    name = weight_map.get(theirs)
    if name is None:
        raise InputError(must(f"tensor {theirs}", "listed", "missing", index, "name a folder of Llama weights, whole"))
    if name != Path(name).name:
        raise InputError(must(f"file of {theirs}", "in the folder itself", repr(name), index, "mend the index"))
    return name


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {str(name): str(file) for name, file in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(must("index of weights", "valid", f"not ({error!r})", index, "download it again")) from error


def _check_config(model: Model, path: Path) -> list[str]:
    """Compare what no tensor's shape tells: query is dim x dim, however many heads there are."""
    theirs = _read_config(path)
    for name, ours in (("num_attention_heads", model.num_heads), ("num_key_value_heads", model.num_kv_heads)):
        if theirs.get(name, ours) != ours:
            do = "make the heads of train.model those of the weights"
            raise InputError(must(f"heads ({name})", f"{ours} as in the run file", theirs[name], path, do))
    constants = (("rope_theta", model.rope_theta), ("rms_norm_eps", model.norm_eps))
    return [
        f"the weights were trained with {name} {theirs[name]}, the run file says {ours} ({path})"
        for name, ours in constants
        if theirs.get(name, ours) != ours
    ]


def _read_config(path: Path) -> dict[str, Any]:
    """Return config.json; weights alone, without one, are taken as they are."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            must("config of weights", "valid JSON", f"not ({error!r})", path, "download it again")
        ) from error
