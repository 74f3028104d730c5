"""The mathematics of one step over all ranks: gradients, agreement, update; and the held-out loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from steelrail.errors import TrainError, must
from steelrail.train.context import HeldoutBatch, TrainState
from steelrail.train.model import Llama
from steelrail.train.optimizer import squared_norm
from steelrail.train.parallel import as_fsdp, fsdp_modules

DIGEST_MODULUS = 2**63


@dataclass(frozen=True)
class Wish:
    """What one rank, or any rank, asks for at a step's end."""

    stop: bool
    save: bool


def accumulate(state: TrainState, tokens: NDArray[np.int64], global_tokens: int, reduce_once: bool) -> Tensor:
    """Add this rank's gradients of loss / ``global_tokens`` and return its summed loss: a float64 scalar.

    ``tokens`` is (micro-batches, sequences, sequence tokens + 1). With ``reduce_once`` gradients are kept whole on
    every rank until the last micro-batch: one reduction a step, for 4 bytes per parameter and rank.
    """
    device = state.waits.device
    total = torch.zeros((), dtype=torch.float64, device=device)
    for index, micro_batch in enumerate(tokens):
        as_fsdp(state.model).set_requires_gradient_sync(not reduce_once or index == len(tokens) - 1)
        inputs, targets = on_device(micro_batch, device)
        loss = state.model(inputs, targets)
        (loss / global_tokens).backward()
        state.waits.at_end_of_backward()
        total += loss.detach()
    return total


def on_device(tokens: NDArray[np.int64], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return inputs and targets, int64 (sequences, sequence tokens) each."""
    whole = torch.from_numpy(tokens)
    if device.type == "cuda":
        whole = whole.pin_memory().to(device, non_blocking=True)
    return whole[:, :-1], whole[:, 1:]


def sum_loss_and_norm(state: TrainState, loss: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss summed over ranks and the norm of the whole gradient, float64 scalars still on the device."""
    sums = torch.stack((loss, squared_norm(state.optimizer)))
    dist.all_reduce(sums)
    num_replicas = state.mesh.size() // state.mesh.size(state.mesh.ndim - 1)
    return sums[0], (sums[1] / num_replicas).sqrt()


def agree(device: torch.device, digest: int, wish: Wish, bad: bool) -> tuple[int, Wish]:
    """Return the token digest of the global batch and what any rank wishes: the same answer on every rank.

    Raises ``TrainError`` where only some ranks took the step for ``bad``: their weights are no longer of one model.
    """
    sums = torch.tensor([digest, int(wish.stop), int(wish.save), int(bad)], dtype=torch.int64, device=device)
    dist.all_reduce(sums)
    total, stop, save, num_bad = sums.tolist()
    if num_bad not in (0, dist.get_world_size()):
        where, do = f"{num_bad} of {dist.get_world_size()} ranks", "run train again: the last checkpoint is before it"
        raise TrainError(must("a step", "good or bad on all ranks alike", "bad on some", where, do))
    return total % DIGEST_MODULUS, Wish(stop > 0, save > 0)


@torch.no_grad()
def heldout_loss(state: TrainState, batches: Sequence[HeldoutBatch]) -> float:
    """Return the mean loss over all ranks' held-out sequences, in nats per token: the same number on every rank.

    Every rank must bring equally many batches, since FSDP's collectives need all of them; weight 0 does not count.
    """
    device = state.waits.device
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    for batch in batches:
        inputs, targets = on_device(batch.tokens, device)
        counted = torch.from_numpy(batch.weights > 0).to(device).unsqueeze(1)
        sums[0] += state.model(inputs, targets.where(counted, -1))
        sums[1] += counted.sum() * targets.shape[1]
    release(state.model)
    dist.all_reduce(sums)
    total, tokens = sums.tolist()
    return float(total / tokens)


def release(model: Llama) -> None:
    """Free gathered weights. After a pass without gradient FSDP keeps the root's, and would show them as parameters."""
    for module in fsdp_modules(model):
        module.reshard()
