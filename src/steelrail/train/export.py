"""The final weights as a Hugging Face folder, gathered one tensor at a time."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from steelrail.artifacts.files import on_results, sync_folder, write_whole
from steelrail.config.schema import Run
from steelrail.train.context import TrainState
from steelrail.train.hugging_face import INDEX, WeightFile, config_json, index_json, weight_files
from steelrail.train.names import to_hugging_face

MAX_FILE_BYTES = 5_000_000_000


def write_weights(
    run: Run,
    state: TrainState,
    folder: Path,
    tokenizer: Path | None,
    end_of_text_id: int | None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Write safetensors, config.json and the tokenizer to ``folder``; every rank must call it, rank 0 writes.

    bfloat16 when trained so, else float32. The folder appears whole, by one rename; an older one is replaced. Rank 0
    holds one file's tensors (``max_file_bytes``) in host memory at most.
    """
    dtype = torch.bfloat16 if run.train.precision == "bf16" else torch.float32
    parameters = {name: parameter.detach() for name, parameter in state.optimizer.parameters.items()}
    sizes = {name: parameter.numel() * dtype.itemsize for name, parameter in parameters.items()}
    files = weight_files(sizes, max_file_bytes)
    writes = state.mesh.get_rank() == 0
    partial = folder.with_name(f".{folder.name}.partial")
    if writes:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    for file in files:
        _write_file(partial, file, parameters, dtype, writes)
    if writes:
        _write_texts(partial, run, files, sizes, tokenizer, end_of_text_id)
        _put_in_place(partial, folder)


def _write_file(
    partial: Path, file: WeightFile, parameters: dict[str, Tensor], dtype: torch.dtype, writes: bool
) -> None:
    gathered = {}
    for name in file.parameters:
        # Cast before gathering: half the bytes over the links, the same numbers.
        whole = cast(DTensor, parameters[name].to(dtype)).full_tensor()
        if writes:
            gathered[to_hugging_face(name)] = whole.cpu().contiguous()
    if writes:
        _save(gathered, partial / file.name)


def _save(gathered: dict[str, Tensor], path: Path) -> None:
    """Write one file. Raises ``FullError``: safetensors says it in its own kind, by the system's number alone."""
    try:
        save_file(gathered, str(path), metadata={"format": "pt"})
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        with on_results(path):
            raise OSError(int(number[1]), str(error)) from error


def _write_texts(
    partial: Path,
    run: Run,
    files: tuple[WeightFile, ...],
    sizes: dict[str, int],
    tokenizer: Path | None,
    end_of_text_id: int | None,
) -> None:
    write_whole(partial / "config.json", _json(config_json(run.train, end_of_text_id)))
    if len(files) > 1:
        write_whole(partial / INDEX, _json(index_json(files, sizes)))
    if tokenizer is not None:
        write_whole(partial / "tokenizer.json", tokenizer.read_bytes())


def _put_in_place(partial: Path, folder: Path) -> None:
    for path in partial.iterdir():
        with path.open("rb+") as file:
            # Durable before the rename makes it count.
            os.fsync(file.fileno())
    sync_folder(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.replace(folder)
    sync_folder(folder.parent)


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
