"""How long this rank's compute stood still for other ranks: exposed communication, in seconds.

On CPUs a collective blocks its caller, so all of it is exposed and the host's clock times it. On GPUs collectives run
on streams of their own; what is exposed is how much later a collective ended than the compute stream came to need it.
Both moments are CUDA events, read only after the step's one synchronisation, so that timing never makes the host wait.
Waiting for a slower rank counts too: from the outside it is the same. Not seen on GPUs: kernels that run slower because
a collective shares the chip with them, and the all-reduce of a replica axis other than at the end of the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

# Newer torch renamed both and warns about the old names.
_all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Waits:
    """Collects the waits of one rank. ``clock`` is a monotonic clock in seconds; the device says which way to time."""

    def __init__(self, clock: Callable[[], float], device: torch.device) -> None:
        self.device = device
        self.cuda = device.type == "cuda"
        self._clock = clock
        self._seconds = 0.0
        self._intervals: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self.at_end_of_backward: Callable[[], None] = lambda: None

    @contextmanager
    def around(self) -> Iterator[None]:
        """Count the time inside as waiting. On GPUs: the time of the current stream."""
        started, first = self._clock(), mark() if self.cuda else None
        yield
        if first is not None:
            self.between(first, mark())
        else:
            self._seconds += self._clock() - started

    def between(self, needed: torch.cuda.Event, ended: torch.cuda.Event) -> None:
        """Count the time from ``needed`` to ``ended``, where that is positive."""
        self._intervals.append((needed, ended))

    def take(self) -> float:
        """Return the seconds since the last call. On GPUs the caller has synchronised with all but the newest event."""
        for _, newest in self._intervals[-1:]:
            newest.synchronize()
        waited_ms = [float(needed.elapsed_time(ended)) for needed, ended in self._intervals]
        seconds = self._seconds + sum(max(0.0, one) for one in waited_ms) / 1000.0
        self._seconds, self._intervals = 0.0, []
        return seconds


def mark() -> torch.cuda.Event:
    """Return an event recorded now on the current CUDA stream."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def time_collectives(model: nn.Module, waits: Waits) -> None:
    """Let every FSDP module of ``model`` report its all-gathers and reduce-scatters to ``waits``."""
    reductions = TimedReduceScatter(waits)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            gather = TimedAllGather(waits)
            module.set_custom_all_gather(gather)
            module.set_custom_reduce_scatter(reductions)
            if waits.cuda:
                _mark_needs(module, gather, reductions)


class TimedAllGather(AllGather):
    """One module's all-gather. FSDP starts it before or after the compute stream comes to need it: both are paired."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._needed: torch.cuda.Event | None = None
        self._ended: torch.cuda.Event | None = None

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an empty buffer, as FSDP's own all-gather does."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """Gather, and note when it ended."""
        if not self._waits.cuda:
            with self._waits.around():
                return _all_gather(output_tensor, input_tensor, group=group, async_op=async_op)  # type: ignore[no-any-return]
        work = _all_gather(output_tensor, input_tensor, group=group, async_op=async_op)
        self._ended = mark()
        self._pair()
        return work  # type: ignore[no-any-return]

    def needed(self) -> None:
        """Note that the compute stream needs the weights from here on."""
        self._needed = mark()
        self._pair()

    def served(self) -> None:
        """Note that a pass through the module is over: a need without an all-gather had its weights already."""
        self._needed = None

    def _pair(self) -> None:
        if self._needed is not None and self._ended is not None:
            self._waits.between(self._needed, self._ended)
            self._needed = self._ended = None


class TimedReduceScatter(ReduceScatter):
    """The reduce-scatters of all modules, which run one after the other.

    FSDP lets the backward pass of a module end only when the reduce-scatter before its own has; the last ones are
    waited for at the end of the whole pass, where no compute is left.
    """

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._needed: torch.cuda.Event | None = None
        self._waited_for: torch.cuda.Event | None = None
        self._ended: torch.cuda.Event | None = None
        waits.at_end_of_backward = self.end_of_backward

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an empty buffer, as FSDP's own reduce-scatter does."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> dist.Work:
        """Reduce and scatter, and note when it ended."""
        if not self._waits.cuda:
            with self._waits.around():
                return _reduce_scatter(output_tensor, input_tensor, group=group, op=op, async_op=async_op)  # type: ignore[no-any-return]
        work = _reduce_scatter(output_tensor, input_tensor, group=group, op=op, async_op=async_op)
        self._ended = mark()
        return work  # type: ignore[no-any-return]

    def needed(self) -> None:
        """Note that the compute stream is at the end of a module's backward pass."""
        self._close(self._waited_for)
        self._needed, self._waited_for = mark(), self._ended

    def end_of_backward(self) -> None:
        """Count the wait at the end of the whole pass: from the last module's end to the last reduce-scatter's."""
        self._close(self._ended)
        self._needed = self._waited_for = self._ended = None

    def _close(self, ended: torch.cuda.Event | None) -> None:
        if self._needed is not None and ended is not None:
            self._waits.between(self._needed, ended)


def _mark_needs(module: nn.Module, gather: TimedAllGather, reductions: TimedReduceScatter) -> None:
    """Put marks around FSDP's own hooks: before it waits in forward, before it waits in backward, before it reduces."""

    def before_forward(_module: nn.Module, _inputs: Any) -> None:
        gather.needed()

    def inside_forward(_module: nn.Module, inputs: Any) -> None:
        if inputs and inputs[0].requires_grad:
            inputs[0].register_hook(lambda _gradient: reductions.needed())

    def after_forward(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        gather.served()
        if output.requires_grad:
            output.register_hook(lambda _gradient: gather.needed())  # type: ignore[no-untyped-call]

    module.register_forward_pre_hook(before_forward, prepend=True)
    module.register_forward_pre_hook(inside_forward)
    module.register_forward_hook(after_forward, prepend=True)
