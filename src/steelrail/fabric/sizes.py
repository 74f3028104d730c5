"""The messages that training this model makes, and the bandwidth that a time means. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from steelrail.config.schema import Model

Collective = Literal["all_gather", "reduce_scatter", "all_reduce"]
DType = Literal["bf16", "fp32"]
ITEM_BYTES: dict[DType, int] = {"bf16": 2, "fp32": 4}
# Share of the message that crosses each rank's link, times the ranks: nccl-tests, doc/PERFORMANCE.md.
_PASSES: dict[Collective, int] = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}


@dataclass(frozen=True)
class Message:
    """One collective of training. ``num_items`` counts the whole message, a multiple of the ranks (small: one item)."""

    what: Literal["block", "root", "small"]
    collective: Collective
    dtype: DType
    num_items: int

    @property
    def size_bytes(self) -> int:
        """Bytes as nccl-tests counts them: what is gathered, or what is reduced."""
        return self.num_items * ITEM_BYTES[self.dtype]


def messages(model: Model, precision: DType, world_size: int, max_bytes: int | None = None) -> tuple[Message, ...]:
    """Return the messages of one training step under FSDP.

    Parameters are gathered in ``precision``, gradients reduced in fp32, a block at a time; the root holds embedding,
    last norm and head. A 4-byte all-reduce stands for the clip norm. ``max_bytes`` caps each message (where links are
    slow).
    """
    block, root = block_params(model), root_params(model)
    wanted: tuple[tuple[Literal["block", "root"], Collective, DType, int], ...] = (
        ("block", "all_gather", precision, block),
        ("block", "reduce_scatter", "fp32", block),
        ("block", "all_reduce", "fp32", block),
        ("root", "all_gather", precision, root),
        ("root", "reduce_scatter", "fp32", root),
    )
    sharded = [
        Message(what, collective, dtype, _items(num_items, dtype, world_size, max_bytes))
        for what, collective, dtype, num_items in wanted
    ]
    return (*sharded, Message("small", "all_reduce", "fp32", 1))


def block_params(model: Model) -> int:
    """Return the parameters of one transformer block: attention, SwiGLU and two norms."""
    kv_dim = model.head_dim * model.num_kv_heads
    attention = 2 * model.dim * model.dim + 2 * model.dim * kv_dim
    return attention + 3 * model.dim * model.ffn_dim + 2 * model.dim


def root_params(model: Model) -> int:
    """Return the parameters outside the blocks: embedding, last norm and, if it is not tied, the head."""
    embedding = model.vocab_size * model.dim
    return embedding * (1 if model.tied_embeddings else 2) + model.dim


def algbw_gb_per_s(size_bytes: int, seconds: float) -> float:
    """Return size over time, in GB/s."""
    return size_bytes / max(seconds, 1e-12) / 1e9


def busbw_gb_per_s(collective: Collective, size_bytes: int, seconds: float, num_ranks: int) -> float:
    """Return algbw corrected for collective and ranks, to compare with a link's speed (nccl-tests, doc/PERFORMANCE.md).

    All-gather and reduce-scatter: x (n - 1) / n; all-reduce: x 2 (n - 1) / n. One rank uses no link: 0.
    """
    return algbw_gb_per_s(size_bytes, seconds) * _PASSES[collective] * (num_ranks - 1) / num_ranks


def _items(num_items: int, dtype: DType, world_size: int, max_bytes: int | None) -> int:
    fitting = num_items if max_bytes is None else min(num_items, max_bytes // ITEM_BYTES[dtype])
    return max(1, -(-fitting // world_size)) * world_size
