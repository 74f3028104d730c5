"""A copy of the training state in host memory, so that the next step may change the state while the copy is written.

Of a GPU's state the copy is made by a stream of its own while training goes on with work that only reads the state: the
next forward and backward. Whatever changes the state is ordered after it by ``before_change``, on the GPU.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from steelrail.checkpoints.pinned import pinned_memory
from steelrail.errors import CheckpointError, must

State = Mapping[str, torch.Tensor]
Nested = Mapping[str, Any]  # name to tensor, or to another such mapping
_ALIGN_BYTES = 512


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
    """Buffers in host memory of the state's names and shapes, used again and again; page-locked for a GPU's state.

    ``take`` begins a copy, ``wait`` (any thread) returns when it is whole; between the two nothing may change the
    state, save after a ``before_change``. One copy at a time: it stands until the next ``take``.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}
        self._making: threading.Thread | None = None
        self._gpu: torch.device | None = None
        self._stream: torch.cuda.Stream | None = None
        self._done: torch.cuda.Event | None = None

    def prepare(self, state: State) -> None:
        """Begin to make the buffers for a GPU's state: locking gigabytes takes seconds that the first save lacks."""
        gpu = _gpu_of(state)
        if gpu is not None and self._making is None:
            work = partial(self._make, dict(state), gpu)
            self._making = threading.Thread(target=work, name="checkpoint-memory", daemon=True)
            self._making.start()

    @torch.no_grad()
    def take(self, state: State) -> dict[str, torch.Tensor]:
        """Begin to copy the state and return where the copy comes to lie (a DTensor stays one); see ``wait``."""
        if self._making is not None:
            self._making.join()
        gpu = _gpu_of(state)
        if not _alike(self._buffers, state):
            self._make(state, gpu)
        if gpu is None:
            self._copy(state)
        else:
            self._copy_aside(state, gpu)
        return dict(self._buffers)

    def wait(self) -> None:
        """Return when the copy is whole. Waits for its stream only."""
        if self._done is not None:
            with _at(self._gpu):
                self._done.synchronize()

    def before_change(self) -> None:
        """Order what this thread's GPU stream does from now on after the copy. The thread itself does not wait."""
        if self._done is not None:
            torch.cuda.current_stream().wait_event(self._done)

    def _make(self, state: State, gpu: torch.device | None) -> None:
        with _at(gpu):
            self._buffers = _buffers(state)

    def _copy(self, state: State) -> None:
        for name, value in state.items():
            local(self._buffers[name]).copy_(local(value), non_blocking=True)

    def _copy_aside(self, state: State, gpu: torch.device) -> None:
        self._gpu, self._stream = gpu, self._stream or torch.cuda.Stream(gpu)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(gpu))
        with torch.cuda.stream(self._stream):
            self._copy(state)
        # One event per copy: a waiter of this one must not be given the next.
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._done.record(self._stream)


def local(value: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this rank holds."""
    # ``to_local`` is differentiable and would make a view; the part itself is wanted.
    return value._local_tensor if isinstance(value, DTensor) else value


def local_bytes(state: State) -> int:
    """Return the bytes of the state that this rank holds."""
    return sum(_bytes_of(local(value)) for value in state.values())


def _bytes_of(part: torch.Tensor) -> int:
    return part.numel() * part.element_size()


def _gpu_of(state: State) -> torch.device | None:
    """Return the GPU that holds state of this rank, or none."""
    return next((local(value).device for value in state.values() if _on_gpu(local(value))), None)


@contextlib.contextmanager
def _at(gpu: torch.device | None) -> Iterator[None]:
    """Call CUDA for this GPU: a new thread's calls are for the first one, and would open it in every rank."""
    if gpu is None:
        yield
        return
    with torch.cuda.device(gpu):
        yield


def _on_gpu(part: torch.Tensor) -> bool:
    return part.is_cuda


def _buffers(state: State) -> dict[str, torch.Tensor]:
    """Return host tensors like the state's; those of a GPU's lie side by side in one page-locked piece of memory."""
    places, end = {}, 0
    for name, value in state.items():
        if _on_gpu(local(value)) and local(value).numel():
            places[name] = end
            end += -(-_bytes_of(local(value)) // _ALIGN_BYTES) * _ALIGN_BYTES
    memory = pinned_memory(end) if end else None

    def part(name: str, value: torch.Tensor) -> torch.Tensor:
        if name not in places:
            return torch.empty(value.shape, dtype=value.dtype, device="cpu")
        # A storage of its own: torch saves whole storages, and copies first what is only a view into one.
        flat = torch.frombuffer(memory, dtype=value.dtype, count=value.numel(), offset=places[name])
        return flat.view(value.shape)

    return {name: _like(value, part(name, local(value))) for name, value in state.items()}


def _like(value: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    if not isinstance(value, DTensor):
        return part
    return DTensor(part, value._spec, requires_grad=False)  # type: ignore[no-untyped-call]


def _alike(buffers: State, state: State) -> bool:
    def kind(value: torch.Tensor) -> object:
        layout = (value.device_mesh, value.placements) if isinstance(value, DTensor) else None
        return (value.shape, local(value).shape, value.dtype, layout)

    return buffers.keys() == state.keys() and all(kind(buffers[name]) == kind(state[name]) for name in state)
