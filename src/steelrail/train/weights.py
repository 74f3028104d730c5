"""Starting from a Hugging Face folder of safetensors: each rank reads only its own rows of each tensor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from steelrail.train.model import Llama
from steelrail.train.names import to_hugging_face
from steelrail.train.parallel import local, local_rows
from steelrail.train.weight_files import files_of, open_file, tensor_slice


@torch.no_grad()
def read_weights(model: Llama, folder: Path, beat: Callable[[], None]) -> None:
    """Fill the sharded ``model`` from ``folder``: one model.safetensors, or several with their index.

    ``beat`` is called for each tensor, a sign of life. Raises ``InputError`` when the folder or a tensor is missing,
    torn, or of another shape.
    """
    parameters = {to_hugging_face(name): parameter for name, parameter in model.named_parameters()}
    for theirs, file in files_of(folder, parameters).items():
        beat()
        local(parameters[theirs]).copy_(_read_rows(file, theirs, parameters[theirs]))


def _read_rows(file: Path, theirs: str, parameter: nn.Parameter) -> torch.Tensor:
    rows = local_rows(cast(DTensor, parameter))
    with open_file(file, "pt") as tensors:
        part = tensor_slice(tensors, theirs, tuple(parameter.shape), file)
        return cast(torch.Tensor, part[rows.start : rows.stop])
