"""Cross-entropy from hidden states, in float32, without ever holding the logits of a whole micro-batch."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

# 512 MiB of float32 logits at a time. Fixed, so that the same model always sums in the same order.
_CHUNK_LOGITS = 2**27
_CHUNK_MULTIPLE = 128


def summed_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of -log softmax(hidden @ weight.T)[target] over all targets: a float32 scalar, in nats.

    ``hidden`` (tokens, dim) and ``weight`` (vocabulary, dim) have one dtype; ``targets`` int64 (tokens), negative ones
    do not count. A sum, not a mean: the caller divides by the tokens of the whole global batch, so that the gradient
    does not depend on how the batch is split.
    """
    needs_gradient = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    loss = _ChunkedCrossEntropy.apply(hidden, weight, targets, needs_gradient)  # type: ignore[no-untyped-call]
    return cast(Tensor, loss)


def chunk_tokens(vocab_size: int) -> int:
    """Return how many tokens' logits are made at a time."""
    return max(_CHUNK_MULTIPLE, _CHUNK_LOGITS // vocab_size // _CHUNK_MULTIPLE * _CHUNK_MULTIPLE)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Makes the gradient with the loss, chunk by chunk: logits are made once and never kept."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, needs_gradient: bool) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        hidden_gradient = torch.empty_like(hidden) if needs_gradient else None
        # Sums over chunks need float32 even where the weights are bfloat16.
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if needs_gradient else None
        for start in range(0, hidden.shape[0], chunk_tokens(weight.shape[0])):
            rows = slice(start, start + chunk_tokens(weight.shape[0]))
            loss, logits_gradient = _loss_and_gradient(hidden[rows] @ weight.T, targets[rows], needs_gradient)
            total += loss
            if hidden_gradient is not None and weight_gradient is not None and logits_gradient is not None:
                hidden_gradient[rows] = logits_gradient @ weight
                weight_gradient += logits_gradient.T @ hidden[rows]
        if hidden_gradient is not None and weight_gradient is not None:
            ctx.save_for_backward(hidden_gradient, weight_gradient.to(weight.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, *scale: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        factor = scale[0]
        return (
            hidden_gradient * factor.to(hidden_gradient.dtype),
            weight_gradient * factor.to(weight_gradient.dtype),
            None,
            None,
        )


def _loss_and_gradient(logits: Tensor, targets: Tensor, needs_gradient: bool) -> tuple[Tensor, Tensor | None]:
    """Return the summed loss of one chunk and, where asked for, its gradient by the logits, in their dtype."""
    counted = (targets >= 0).float().unsqueeze(1)
    index = targets.clamp(min=0).unsqueeze(1)
    log_probability = torch.log_softmax(logits.float(), dim=-1)
    loss = -(log_probability.gather(1, index) * counted).sum()
    if not needs_gradient:
        return loss, None
    gradient = log_probability.exp_()
    # One entry a row: plain indexing, whose CUDA kernel is deterministic where scatter_add's is not.
    gradient.scatter_(1, index, gradient.gather(1, index) - 1.0)
    return loss, gradient.mul_(counted).to(logits.dtype)
