"""Starting from a Hugging Face folder of safetensors: each rank reads only its own rows of each tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.distributed.tensor import DTensor

from steelrail.errors import InputError, must
from steelrail.train.hugging_face import INDEX, SINGLE
from steelrail.train.model import Llama
from steelrail.train.names import to_hugging_face
from steelrail.train.parallel import local, local_rows


@torch.no_grad()
def read_weights(model: Llama, folder: Path) -> None:
    """Fill the sharded ``model`` from ``folder``: one model.safetensors, or several with their index.

    Raises ``InputError`` when the folder or a tensor is missing, torn, or of another shape.
    """
    for name, parameter in model.named_parameters():
        theirs, rows = to_hugging_face(name), local_rows(cast(DTensor, parameter))
        local(parameter).copy_(_read_rows(_file_of(folder, theirs), theirs, parameter, rows))


def check_weights(shapes: dict[str, tuple[int, ...]], folder: Path) -> None:
    """Raise ``InputError`` unless ``folder`` holds every parameter (our names to shapes); reads headers only."""
    for name, shape in shapes.items():
        theirs = to_hugging_face(name)
        file = _file_of(folder, theirs)
        with _open(file) as tensors:
            _slice(tensors, theirs, shape, file)


def parameter_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return our names and the whole shape of every parameter."""
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def _read_rows(file: Path, theirs: str, parameter: nn.Parameter, rows: range) -> torch.Tensor:
    with _open(file) as tensors:
        part = _slice(tensors, theirs, tuple(parameter.shape), file)
        return cast(torch.Tensor, part[rows.start : rows.stop])


def _slice(tensors: Any, theirs: str, shape: tuple[int, ...], file: Path) -> Any:
    if theirs not in tensors.keys():  # noqa: SIM118 - a safetensors handle is no mapping
        raise InputError(must(f"tensor {theirs}", "there", "missing", file, "name a folder of Llama weights, whole"))
    part = tensors.get_slice(theirs)
    found = tuple(part.get_shape())
    if found != shape:
        do = "make train.model (vocab_size, dim, heads, ffn_dim) that of the weights"
        raise InputError(must(f"tensor {theirs}", f"of shape {shape}", found, file, do))
    return part


def _open(file: Path) -> Any:
    try:
        return safe_open(str(file), framework="pt")
    except (OSError, SafetensorError) as error:
        fault = " ".join(str(error).split())[:200]
        raise InputError(must("weights", "a safetensors file", f"not ({fault})", file, "download it again")) from error


def _file_of(folder: Path, theirs: str) -> Path:
    """Return the file that holds a tensor."""
    index = folder / INDEX
    if not index.exists():
        return folder / SINGLE
    name = _weight_map(index).get(theirs)
    if name is None:
        raise InputError(must(f"tensor {theirs}", "listed", "missing", index, "name a folder of Llama weights, whole"))
    if name != Path(name).name:
        raise InputError(must(f"file of {theirs}", "in the folder itself", repr(name), index, "mend the index"))
    return folder / name


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {str(name): str(file) for name, file in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(must("index of weights", "valid", f"not ({error!r})", index, "download it again")) from error
