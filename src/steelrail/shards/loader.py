"""Mapped data shards to batches: sequences cut across shard borders, gathered by id, ahead of the step that needs them.

The tokens of a split, shard after shard in the manifest's order, are one long line. Sequence ``i`` is its tokens
``i*T .. i*T + T`` inclusive: T inputs and T targets, each the next token.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from steelrail.artifacts.shards import DataShard, Split
from steelrail.errors import InputError, NodeError, must
from steelrail.shards.order import Ids, Order
from steelrail.shards.prefetch import prefetch

Tokens = npt.NDArray[np.uint32]
Wide = npt.NDArray[np.int64]
WaitFor = Callable[[Iterable[str]], None]

PREFETCH_STEPS = 2
DIGEST_MASK = 2**63 - 1


@dataclass(frozen=True)
class RankPlan:
    """Which share of every global batch one rank takes, and in what pieces."""

    rank: int
    world_size: int
    batch_sequences: int
    micro_batch_sequences: int

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches per step on this rank."""
        return self.batch_sequences // (self.world_size * self.micro_batch_sequences)


@dataclass(frozen=True)
class Batch:
    """One rank's share of a step. ``tokens`` int64 [micro-batches, sequences, T + 1]; ``digest`` below 2^63.

    The step's ``token_digest`` is the sum of all ranks' digests modulo 2^63 (``add_digests``).
    """

    step: int
    tokens: Wide
    digest: int


@dataclass(frozen=True)
class HeldoutBatch:
    """A held-out micro-batch. ``tokens`` int64 [sequences, T + 1]; ``weights`` float32 [sequences], 0 for padding."""

    tokens: Wide
    weights: npt.NDArray[np.float32]


class SequenceSource:
    """Sequences of one split by id. Data shards are mapped when first needed, once ``wait_for`` lets them pass."""

    def __init__(
        self,
        folder: Path,
        shards: Sequence[DataShard],
        split: Split,
        sequence_tokens: int,
        wait_for: WaitFor | None = None,
    ) -> None:
        """Raises ``InputError`` when the split holds less than one sequence."""
        self._folder, self._wait_for = folder, wait_for or (lambda names: None)
        self._shards = [shard for shard in shards if shard.split == split]
        self._starts = np.cumsum([0, *(shard.tokens for shard in self._shards)], dtype=np.int64)
        self._mapped: dict[int, Tokens] = {}
        self.sequence_tokens = sequence_tokens
        self.num_sequences = max(0, int(self._starts[-1]) - 1) // sequence_tokens
        if self.num_sequences < 1:
            do = "add text, lower train.sequence_tokens, or change shards.heldout_per_million"
            actual = f"{self._starts[-1]} tokens"
            raise InputError(must(f"{split} text", f"at least {sequence_tokens + 1} tokens", actual, "manifest", do))
        _allow_open_files(len(self._shards))

    def shards_of(self, ids: Ids) -> list[DataShard]:
        """Return the data shards that hold these sequences, each once, in the order in which they are needed."""
        return [self._shards[index] for index in self._touched(ids)]

    def gather(self, ids: Ids) -> Tokens:
        """Return sequences ``ids`` as uint32 [len(ids), T + 1]."""
        self._map([index for index in self._touched(ids) if index not in self._mapped])
        starts = ids * self.sequence_tokens
        out: Tokens = np.empty((len(ids), self.sequence_tokens + 1), dtype=np.uint32)
        for row, start, index in zip(out, starts.tolist(), self._shard_at(starts).tolist(), strict=True):
            self._copy(row, start, index)
        return out

    def _shard_at(self, places: Ids) -> Ids:
        return np.searchsorted(self._starts, places, side="right") - 1

    def _touched(self, ids: Ids) -> list[int]:
        first = self._shard_at(ids * self.sequence_tokens).tolist()
        last = self._shard_at(ids * self.sequence_tokens + self.sequence_tokens).tolist()
        spans = (range(low, high + 1) for low, high in zip(first, last, strict=True))
        return list(dict.fromkeys(chain.from_iterable(spans)))

    def _copy(self, row: Tokens, start: int, index: int) -> None:
        """Fill ``row`` with the tokens from ``start`` on, which lies in shard ``index``."""
        done = 0
        while done < len(row):
            offset = start + done - int(self._starts[index])
            piece = self._mapped[index][offset : offset + len(row) - done]
            row[done : done + len(piece)] = piece
            done += len(piece)
            index += 1

    def _map(self, missing: Sequence[int]) -> None:
        self._wait_for([self._shards[index].name for index in missing])
        for index in missing:
            self._mapped[index] = map_shard(self._folder / self._shards[index].name, self._shards[index])


def map_shard(path: Path, shard: DataShard) -> Tokens:
    """Return a data shard's tokens (uint32, read-only) as a view of the mapped file. Raises ``NodeError``."""
    try:
        batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
        values = batch.column(0).values
    except (OSError, pa.ArrowException) as error:
        why = " ".join(str(error).split())[:200]
        raise NodeError(must("data shard", "a readable Arrow file", f"not ({why})", path, "remove it")) from error
    if values.type != pa.uint32() or len(values) != shard.tokens or values.null_count:
        actual = f"{len(values)} values of {values.type}"
        raise NodeError(must("data shard", f"{shard.tokens} tokens of uint32", actual, path, "remove it"))
    # Not pyarrow's own to_numpy, which loads pandas: seconds of a CPU on every rank.
    return np.frombuffer(values.buffers()[1], np.uint32, len(values), 4 * values.offset)


def order_of_need(
    source: SequenceSource, order: Order, batch_sequences: int, step: int, num_steps: int
) -> list[DataShard]:
    """Return the data shards of ``num_steps`` steps from ``step`` on, in the order in which the steps need them.

    Stage in takes these first, then the rest; a mapped source waits for whatever a later step needs.
    """
    return source.shards_of(order.ids(step * batch_sequences, num_steps * batch_sequences))


def rank_batch(source: SequenceSource, order: Order, plan: RankPlan, step: int) -> Batch:
    """Return one rank's share of the global batch of ``step`` (steps count from 0)."""
    ids = order.step_ids(step, plan.batch_sequences, plan.rank, plan.world_size)
    rows = source.gather(ids)
    first = plan.rank * len(ids)
    shape = (plan.num_micro_batches, plan.micro_batch_sequences, rows.shape[1])
    return Batch(step, rows.astype(np.int64).reshape(shape), batch_digest(rows, first))


def rank_batches(
    source: SequenceSource, order: Order, plan: RankPlan, start_step: int, end_step: int, depth: int = PREFETCH_STEPS
) -> Iterator[Batch]:
    """Yield one rank's batches of steps ``start_step .. end_step - 1``, ``depth`` of them made ahead in a thread."""
    return prefetch((rank_batch(source, order, plan, step) for step in range(start_step, end_step)), depth)


def batch_digest(rows: Tokens, first: int) -> int:
    """Return the digest of sequences at places ``first ..`` of a global batch, which ranks may share in any way."""
    words = rows.astype("<u4", copy=False)
    hashes = (
        xxhash.xxh3_64_intdigest(place.to_bytes(8, "little") + row.tobytes()) >> 1
        for place, row in enumerate(words, first)
    )
    return add_digests(hashes)


def add_digests(digests: Iterable[int]) -> int:
    """Return the sum modulo 2^63 of ranks' (or sequences') digests."""
    return sum(digests) & DIGEST_MASK


def heldout_batches(source: SequenceSource, num_sequences: int, plan: RankPlan) -> list[HeldoutBatch]:
    """Return one rank's share of the first ``num_sequences`` held-out sequences: equally many batches on all ranks.

    Ranks that have none left get padding of weight 0, because every rank must take part in every forward.
    """
    total = min(num_sequences, source.num_sequences)
    micro = plan.micro_batch_sequences
    share = -(-total // (plan.world_size * micro)) * micro
    ids = np.arange(plan.rank * share, (plan.rank + 1) * share, dtype=np.int64)
    real = ids < total
    tokens = source.gather(np.where(real, ids, 0)).astype(np.int64)
    weights = real.astype(np.float32)
    return [HeldoutBatch(tokens[at : at + micro], weights[at : at + micro]) for at in range(0, share, micro)]


def _allow_open_files(num_shards: int) -> None:
    """Raise the soft limit of open files: every mapped shard keeps one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = num_shards + 1024
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
