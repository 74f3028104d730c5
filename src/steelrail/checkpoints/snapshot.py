"""A copy of the training state in host memory, so that the next step may change the state while the copy is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from steelrail.errors import CheckpointError, must

State = Mapping[str, torch.Tensor]
Nested = Mapping[str, Any]  # name to tensor, or to another such mapping


def flatten(state: Nested, prefix: str = "") -> dict[str, torch.Tensor]:
    """Return nested names joined by dots, each with its tensor. Raises ``CheckpointError`` for anything but tensors."""
    flat: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        flat.update(flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value})
    _require_tensors(flat)
    return flat


def _require_tensors(state: Mapping[str, object]) -> None:
    """Raise ``CheckpointError`` for anything but tensors: others would need a pickle, which is never read back."""
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            do = "put numbers and text into extra"
            raise CheckpointError(must(f"state {name}", "a tensor", type(value).__name__, "checkpoint", do))


class HostCopy:
    """Buffers in host memory of the state's names and shapes, used again and again; pinned for a GPU's state."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def take(self, state: State) -> dict[str, torch.Tensor]:
        """Copy the state and return the copy (a DTensor stays one). It stands until the next ``take``."""
        if not _alike(self._buffers, state):
            self._buffers = {name: _buffer(value) for name, value in state.items()}
        for name, value in state.items():
            local(self._buffers[name]).copy_(local(value), non_blocking=True)
        for device in {local(value).device for value in state.values()}:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
        return dict(self._buffers)


def local(value: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this rank holds."""
    # ``to_local`` is differentiable and would make a view; the part itself is wanted.
    return value._local_tensor if isinstance(value, DTensor) else value


def local_bytes(state: State) -> int:
    """Return the bytes of the state that this rank holds."""
    return sum(local(value).numel() * local(value).element_size() for value in state.values())


def _buffer(value: torch.Tensor) -> torch.Tensor:
    part = local(value)
    pinned = part.is_cuda and part.numel() > 0
    empty = torch.empty(part.shape, dtype=part.dtype, device="cpu", pin_memory=pinned)
    if not isinstance(value, DTensor):
        return empty
    return DTensor(empty, value._spec, requires_grad=False)  # type: ignore[no-untyped-call]


def _alike(buffers: State, state: State) -> bool:
    def kind(value: torch.Tensor) -> object:
        layout = (value.device_mesh, value.placements) if isinstance(value, DTensor) else None
        return (value.shape, local(value).shape, value.dtype, layout)

    return buffers.keys() == state.keys() and all(kind(buffers[name]) == kind(state[name]) for name in state)
