"""Is each device sound? All multiply the same matrices, timed, and must get the same bits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from steelrail.fabric.schedule import percentile
from steelrail.fabric.timing import Clock, time_each

_SEED = 20_240_701


@dataclass(frozen=True)
class Health:
    """A device's matrix product. ``digest`` is equal on sound devices of one model and one software."""

    seconds_p50: float
    digest: str


def check_device(device: torch.device, size: int, repeats: int, clock: Clock) -> Health:
    """Multiply seeded ``size`` x ``size`` matrices ``repeats`` times in fp32 and, on CUDA, bf16; time the last kind.

    A device whose own repeats differ gets a digest that no other can have.
    """
    with _exact(device), torch.no_grad():
        left, right = _matrices(size, device)
        kinds = (torch.float32, torch.bfloat16) if device.type == "cuda" else (torch.float32,)
        results = [_multiply(left.to(kind), right.to(kind), repeats, device, clock) for kind in kinds]
    digest = hashlib.sha256("".join(one.digest for one in results).encode()).hexdigest()
    return Health(results[-1].seconds_p50, digest if all(one.steady for one in results) else f"unsteady {digest}")


@dataclass(frozen=True)
class _Product:
    seconds_p50: float
    digest: str
    steady: bool


def _multiply(left: torch.Tensor, right: torch.Tensor, repeats: int, device: torch.device, clock: Clock) -> _Product:
    first = left @ right
    product = torch.empty_like(first)
    different = torch.zeros((), dtype=torch.int64, device=device)

    def compare() -> None:
        # Runs before each timed product: judges the one before it, on the device, without waiting for it.
        different.add_((product != first).any())

    product.copy_(first)
    seconds = time_each(lambda: torch.mm(left, right, out=product), repeats, device, clock, compare)
    compare()
    return _Product(percentile(seconds, 50), _digest(first), int(different) == 0)


def _matrices(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    # Made on the CPU, so that every device multiplies the same numbers.
    generator = torch.Generator().manual_seed(_SEED)
    left, right = (torch.randn(size, size, generator=generator) for _ in range(2))
    return left.to(device), right.to(device)


def _digest(product: torch.Tensor) -> str:
    return hashlib.sha256(product.cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


@contextmanager
def _exact(device: torch.device) -> Iterator[None]:
    """One thread on the CPU and no TF32 on CUDA: other settings may sum in another order."""
    threads, tf32 = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32
    try:
        if device.type == "cpu":
            torch.set_num_threads(1)
        torch.backends.cuda.matmul.allow_tf32 = False
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.set_num_threads(threads)
