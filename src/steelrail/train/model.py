"""Llama 3 in plain torch, shaped by ``config.schema.Model``.

The residual stream is (sequences, positions, dim). RoPE follows Hugging Face's ``rotate_half`` layout, so that
published weights load as they are. Source: The Llama 3 Herd of Models, https://arxiv.org/abs/2407.21783, section 3.2.
"""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from steelrail.config.schema import Model, RopeScaling
from steelrail.train.loss import summed_cross_entropy


class Llama(nn.Module):
    """The whole model. ``recompute`` drops each block's activations and makes them again in the backward pass."""

    def __init__(self, shape: Model, recompute: bool) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab_size, shape.dim)
        self.blocks = nn.ModuleList(Block(shape, recompute) for _ in range(shape.num_layers))
        self.norm = RMSNorm(shape.dim, shape.norm_eps)
        self.head = None if shape.tied_embeddings else nn.Linear(shape.dim, shape.vocab_size, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy summed over all targets, in nats: a float32 scalar.

        ``tokens`` and ``targets`` are int64 (sequences, positions); a negative target does not count. The loss is made
        here, inside the forward pass, since only here are the head's weights whole under FSDP.
        """
        hidden = self.hidden(tokens)
        return summed_cross_entropy(hidden.flatten(0, 1), self.head_weight(), targets.flatten())

    def logits(self, tokens: Tensor) -> Tensor:
        """Return the logits (sequences, positions, vocabulary) of a model that is not sharded."""
        return F.linear(self.hidden(tokens), self.head_weight())

    def hidden(self, tokens: Tensor) -> Tensor:
        """Return the normalised last residual stream (sequences, positions, dim)."""
        cos, sin = rope_tables(self.shape, tokens.shape[1], tokens.device)
        stream = self.embedding(tokens)
        for block in self.blocks:
            stream = block(stream, cos, sin)
        return cast(Tensor, self.norm(stream))

    def head_weight(self) -> Tensor:
        """Return the matrix (vocabulary, dim) that makes logits."""
        return self.embedding.weight if self.head is None else self.head.weight


class Block(nn.Module):
    """Attention and feed-forward, each on a normalised copy of the stream and added to it."""

    def __init__(self, shape: Model, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.attention_norm = RMSNorm(shape.dim, shape.norm_eps)
        self.attention = Attention(shape)
        self.feed_forward_norm = RMSNorm(shape.dim, shape.norm_eps)
        self.feed_forward = FeedForward(shape)

    def forward(self, stream: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the stream after this block, of the same shape."""
        if self.recompute and torch.is_grad_enabled():
            # Inside the block, so that FSDP's hooks stay outside and gather each block once per pass.
            return cast(Tensor, checkpoint(self._add_both, stream, cos, sin, use_reentrant=False))
        return self._add_both(stream, cos, sin)

    def _add_both(self, stream: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        stream = stream + self.attention(self.attention_norm(stream), cos, sin)
        return cast(Tensor, stream + self.feed_forward(self.feed_forward_norm(stream)))


class Attention(nn.Module):
    """Causal grouped-query attention: ``num_heads`` queries share ``num_kv_heads`` keys and values."""

    def __init__(self, shape: Model) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        kv_dim = shape.num_kv_heads * shape.head_dim
        self.query = nn.Linear(shape.dim, shape.dim, bias=False)
        self.key = nn.Linear(shape.dim, kv_dim, bias=False)
        self.value = nn.Linear(shape.dim, kv_dim, bias=False)
        self.output = nn.Linear(shape.dim, shape.dim, bias=False)

    def forward(self, stream: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return what attention adds to the stream."""
        query = rotate(self._heads(self.query(stream)), cos, sin)
        key = rotate(self._heads(self.key(stream)), cos, sin)
        value = self._heads(self.value(stream))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return cast(Tensor, self.output(mixed.transpose(1, 2).flatten(2)))

    def _heads(self, flat: Tensor) -> Tensor:
        """(sequences, positions, heads x head dim) to (sequences, heads, positions, head dim)."""
        return flat.view(*flat.shape[:-1], -1, self.head_dim).transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, shape: Model) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.up = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.down = nn.Linear(shape.ffn_dim, shape.dim, bias=False)

    def forward(self, stream: Tensor) -> Tensor:
        """Return what the feed-forward layer adds to the stream."""
        return cast(Tensor, self.down(F.silu(self.gate(stream)) * self.up(stream)))


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dim; the mean square is taken in float32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, stream: Tensor) -> Tensor:
        """Return the normalised stream in its own dtype."""
        return F.rms_norm(stream, self.weight.shape, self.weight, self.eps)


def rope_tables(shape: Model, num_positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cos and sin, each float32 (positions, head dim); both halves of the last dim are equal.

    Made anew for each forward (three small kernels), so that no buffer has to be sharded, saved or restored.
    """
    frequencies = rope_frequencies(shape).to(device)
    angles = torch.outer(torch.arange(num_positions, device=device, dtype=torch.float32), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rope_frequencies(shape: Model) -> Tensor:
    """Return the radians per position of each pair of dims: float32 (head dim / 2)."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.int64).float() / shape.head_dim
    frequencies = 1.0 / (shape.rope_theta**exponents)
    return frequencies if shape.rope_scaling is None else scaled_frequencies(frequencies, shape.rope_scaling)


def scaled_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Return RoPE frequencies under Llama 3.1's scaling.

    Wavelengths shorter than original / high factor stay, those longer than original / low factor are stretched by
    ``factor``, those between go smoothly from one to the other.
    """
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    smooth = (scaling.original_positions / wavelengths - low) / (high - low)
    between = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
    stretched = torch.where(wavelengths > scaling.original_positions / low, frequencies / scaling.factor, between)
    return torch.where(wavelengths < scaling.original_positions / high, frequencies, stretched)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return queries or keys (sequences, heads, positions, head dim) turned by their position's angles.

    In float32, since bfloat16 tables would lose the phase of far positions; the result has the dtype of ``heads``.
    """
    first, second = heads.float().chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (heads.float() * cos + turned * sin).to(heads.dtype)
