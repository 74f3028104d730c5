"""AdamW over this rank's shards, with state that a checkpoint can hold as plain tensors.

The update is torch's own fused kernel on local tensors: AdamW works element by element, so that sharding changes
nothing, and DTensor's dispatch (milliseconds per step on a CPU) is not paid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from steelrail.config.schema import Optimizer
from steelrail.train.parallel import local


@dataclass
class AdamW:
    """State of the optimizer: ``step`` counts finished updates; both moments are DTensors, sharded like parameters."""

    settings: Optimizer
    parameters: dict[str, nn.Parameter]
    exp_avg: dict[str, Tensor]
    exp_avg_sq: dict[str, Tensor]
    step: int = 0


def make_optimizer(model: nn.Module, settings: Optimizer) -> AdamW:
    """Return an optimizer that has made no step."""
    parameters = dict(model.named_parameters())
    return AdamW(settings, parameters, _zeros(parameters), _zeros(parameters))


def state_for_checkpoint(optimizer: AdamW) -> dict[str, dict[str, Tensor]]:
    """Return everything that a checkpoint must hold, as DTensors that share memory with the live state.

    Saving reads them; loading in place (torch.distributed.checkpoint) writes them. After loading call ``load_state``.
    Weights come from the optimizer, which always holds the sharded ones; the model shows whole ones while gathered.
    """
    weights = {name: parameter.detach() for name, parameter in optimizer.parameters.items()}
    return {"model": weights, "exp_avg": dict(optimizer.exp_avg), "exp_avg_sq": dict(optimizer.exp_avg_sq)}


def load_state(optimizer: AdamW, updates: int) -> None:
    """Say how many updates the tensors now in place have seen: a step that was left out made none."""
    optimizer.step = updates


@torch.no_grad()
def squared_norm(optimizer: AdamW) -> Tensor:
    """Return the sum of squares of this rank's gradients, a float64 scalar: over all ranks, the norm squared."""
    return torch.nn.utils.get_total_norm(gradients(optimizer)).double().square()


@torch.no_grad()
def update(optimizer: AdamW, learning_rate: float, norm: Tensor) -> None:
    """Make one step in place: clip the whole gradient to ``clip_norm`` (``norm`` is its norm), then AdamW."""
    factor = torch.clamp(optimizer.settings.clip_norm / (norm + 1e-6), max=1.0).float()
    torch._foreach_mul_(gradients(optimizer), factor)
    decayed = [name for name, parameter in optimizer.parameters.items() if parameter.ndim > 1]
    rest = [name for name, parameter in optimizer.parameters.items() if parameter.ndim <= 1]
    _adamw(optimizer, decayed, learning_rate, optimizer.settings.weight_decay)
    _adamw(optimizer, rest, learning_rate, 0.0)
    optimizer.step += 1


def gradients(optimizer: AdamW) -> list[Tensor]:
    """Return this rank's part of every gradient."""
    return _gradients(optimizer, list(optimizer.parameters))


def clear_gradients(optimizer: AdamW) -> None:
    """Drop all gradients."""
    for parameter in optimizer.parameters.values():
        parameter.grad = None


def _adamw(optimizer: AdamW, names: list[str], learning_rate: float, weight_decay: float) -> None:
    weights = [local(optimizer.parameters[name]) for name in names]
    # One counter per tensor, since the kernel raises each; the truth is ``optimizer.step``.
    steps = [torch.full((), float(optimizer.step), device=weight.device) for weight in weights]
    settings = optimizer.settings
    adamw(
        weights,
        _gradients(optimizer, names),
        [local(optimizer.exp_avg[name]) for name in names],
        [local(optimizer.exp_avg_sq[name]) for name in names],
        [],
        steps,
        fused=True,
        amsgrad=False,
        beta1=settings.beta1,
        beta2=settings.beta2,
        lr=learning_rate,
        weight_decay=weight_decay,
        eps=settings.eps,
        maximize=False,
    )


def _zeros(parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(parameter.detach()) for name, parameter in parameters.items()}


def _gradients(optimizer: AdamW, names: list[str]) -> list[Tensor]:
    return [local(cast(Tensor, optimizer.parameters[name].grad)) for name in names]
