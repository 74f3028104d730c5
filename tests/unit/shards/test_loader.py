"""Sequences over shard borders, batches for any number of ranks, and digests that do not depend on it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from steelrail.artifacts.shards import DataShard, Split
from steelrail.errors import InputError, NodeError
from steelrail.shards.loader import (
    RankPlan,
    SequenceSource,
    add_digests,
    heldout_batches,
    map_shard,
    order_of_need,
    rank_batch,
    rank_batches,
)
from steelrail.shards.order import Order
from steelrail.shards.write import Packer, shard_name, write_packed

SIZES = [40, 7, 100, 3, 61]
TOTAL = sum(SIZES)


def make(folder: Path, sizes: list[int], split: Split = "train") -> list[DataShard]:
    """Write shards whose tokens count up over all of them, so that a token tells its place."""
    shards, start = [], 0
    for index, size in enumerate(sizes):
        packer = Packer(size)
        packer.add(np.arange(start, start + size - 1, dtype=np.uint32), start + size - 1)
        name = shard_name(0, index, split)
        with pa.OSFile(str(folder / name), mode="w") as sink:
            write_packed(sink, packer.take())
        shards.append(
            DataShard(
                name=name, split=split, part=0, documents=1, tokens=size, size_bytes=1, sha256="", object_key=name
            )
        )
        start += size
    return shards


@pytest.fixture
def shards(tmp_path: Path) -> list[DataShard]:
    return make(tmp_path, SIZES)


@pytest.mark.parametrize("sequence_tokens", [1, 8, 50, 210])
def test_sequences_run_over_shard_borders_and_share_one_token(
    tmp_path: Path, shards: list[DataShard], sequence_tokens: int
) -> None:
    source = SequenceSource(tmp_path, shards, "train", sequence_tokens)
    assert source.num_sequences == (TOTAL - 1) // sequence_tokens
    ids = np.arange(source.num_sequences, dtype=np.int64)
    expected = ids[:, None] * sequence_tokens + np.arange(sequence_tokens + 1)
    assert source.gather(ids).tolist() == expected.tolist()
    assert source.gather(ids[::-1]).tolist() == expected[::-1].tolist()


def test_splits_are_apart(tmp_path: Path) -> None:
    shards = [*make(tmp_path, [20]), *make(tmp_path, [10], "heldout")]
    assert SequenceSource(tmp_path, shards, "train", 4).num_sequences == 4
    assert SequenceSource(tmp_path, shards, "heldout", 4).num_sequences == 2


@pytest.mark.parametrize("sequence_tokens", [TOTAL, TOTAL + 5])
def test_less_than_one_sequence_is_an_input_error(
    tmp_path: Path, shards: list[DataShard], sequence_tokens: int
) -> None:
    with pytest.raises(InputError, match=rf"at least {sequence_tokens + 1} tokens, is {TOTAL} tokens"):
        SequenceSource(tmp_path, shards, "train", sequence_tokens)


def test_a_split_without_shards_is_an_input_error(tmp_path: Path, shards: list[DataShard]) -> None:
    with pytest.raises(InputError, match="heldout text"):
        SequenceSource(tmp_path, shards, "heldout", 8)


def test_shards_are_waited_for_when_they_are_first_needed_and_only_then(
    tmp_path: Path, shards: list[DataShard]
) -> None:
    waited: list[str] = []

    def wait_for(names: Iterable[str]) -> None:
        waited.extend(names)

    source = SequenceSource(tmp_path, shards, "train", 10, wait_for)
    for ids in ([20], [3], [0, 3, 4], [20]):
        source.gather(np.array(ids, dtype=np.int64))
    assert waited == [shards[index].name for index in (4, 0, 1, 2)]


def test_the_order_of_need_is_that_of_the_steps(tmp_path: Path, shards: list[DataShard]) -> None:
    source = SequenceSource(tmp_path, shards, "train", 10)
    order = Order(source.num_sequences, 1)
    needed = order_of_need(source, order, 4, 3, 2)
    steps = [source.shards_of(order.step_ids(step, 4)) for step in (3, 4)]
    assert needed == list(dict.fromkeys(one for step in steps for one in step))


def batches_of(source: SequenceSource, world_size: int, step: int) -> tuple[list[list[int]], int]:
    order, plans = Order(source.num_sequences, 9), [RankPlan(rank, world_size, 16, 2) for rank in range(world_size)]
    batches = [rank_batch(source, order, plan, step) for plan in plans]
    rows = np.concatenate([batch.tokens.reshape(-1, batch.tokens.shape[-1]) for batch in batches])
    return rows.tolist(), add_digests(batch.digest for batch in batches)


@pytest.mark.parametrize("world_size", [2, 4, 8])
@pytest.mark.parametrize("step", [0, 1, 7])
def test_any_number_of_ranks_makes_the_same_global_batch_and_digest(
    tmp_path: Path, shards: list[DataShard], world_size: int, step: int
) -> None:
    source = SequenceSource(tmp_path, shards, "train", 8)
    assert batches_of(source, world_size, step) == batches_of(source, 1, step)


def test_the_digest_is_the_one_that_is_written_down(tmp_path: Path, shards: list[DataShard]) -> None:
    source = SequenceSource(tmp_path, shards, "train", 8)
    rows, digest = batches_of(source, 1, 0)
    packed = [place.to_bytes(8, "little") + np.array(row, dtype="<u4").tobytes() for place, row in enumerate(rows)]
    assert digest == sum(xxhash.xxh3_64_intdigest(data) >> 1 for data in packed) % 2**63


def test_the_digest_tells_the_order_within_a_batch(tmp_path: Path, shards: list[DataShard]) -> None:
    from steelrail.shards.loader import batch_digest

    rows = SequenceSource(tmp_path, shards, "train", 8).gather(np.array([0, 1], dtype=np.int64))
    assert batch_digest(rows, 0) != batch_digest(rows[::-1], 0)
    assert batch_digest(rows, 0) != batch_digest(rows, 1)


def test_digests_add_as_64_bit_integers_do() -> None:
    parts = [2**63 - 1, 2**63 - 5, 17]
    with np.errstate(over="ignore"):
        wrapped = int(np.array(parts, dtype=np.int64).sum())
    assert add_digests(parts) == wrapped & (2**63 - 1)


def test_batches_start_anywhere_and_have_the_shape_asked_for(tmp_path: Path, shards: list[DataShard]) -> None:
    source = SequenceSource(tmp_path, shards, "train", 8)
    order, plan = Order(source.num_sequences, 1), RankPlan(1, 2, 12, 3)
    whole = list(rank_batches(source, order, plan, 0, 6))
    late = list(rank_batches(source, order, plan, 4, 6))
    assert [batch.step for batch in whole] == list(range(6))
    assert (whole[0].tokens.shape, whole[0].tokens.dtype) == ((2, 3, 9), np.dtype(np.int64))
    assert [(one.step, one.digest, one.tokens.tolist()) for one in late] == [
        (one.step, one.digest, one.tokens.tolist()) for one in whole[4:]
    ]


@pytest.mark.parametrize(("world_size", "micro"), [(1, 1), (2, 2), (3, 2), (8, 4)])
@pytest.mark.parametrize("num_sequences", [1, 5, 16, 1000])
def test_heldout_sequences_are_each_weighed_once_and_ranks_keep_step(
    tmp_path: Path, world_size: int, micro: int, num_sequences: int
) -> None:
    source = SequenceSource(tmp_path, make(tmp_path, [50, 31], "heldout"), "heldout", 4)
    plans = [RankPlan(rank, world_size, world_size * micro, micro) for rank in range(world_size)]
    ranks = [heldout_batches(source, num_sequences, plan) for plan in plans]
    assert len({len(batches) for batches in ranks}) == 1
    flat = [
        (int(row[0]) // 4, weight)
        for batches in ranks
        for one in batches
        for row, weight in zip(one.tokens, one.weights, strict=True)
    ]
    assert [place for place, weight in flat if weight == 1] == list(range(min(num_sequences, source.num_sequences)))
    assert {one.tokens.shape for batches in ranks for one in batches} == {(micro, 5)}


def test_a_mapped_shard_is_a_view_that_cannot_be_written(tmp_path: Path, shards: list[DataShard]) -> None:
    tokens = map_shard(tmp_path / shards[0].name, shards[0])
    assert tokens.tolist() == list(range(40))
    assert not tokens.flags.owndata
    assert not tokens.flags.writeable


def test_a_shard_that_is_not_as_the_manifest_says_is_refused(tmp_path: Path, shards: list[DataShard]) -> None:
    path = tmp_path / shards[0].name
    with pytest.raises(NodeError, match="must be 41 tokens of uint32, is 40 values of uint32"):
        map_shard(path, shards[0].model_copy(update={"tokens": 41}))
    path.write_bytes(b"torn")
    with pytest.raises(NodeError, match="readable Arrow file"):
        map_shard(path, shards[0])
    with pytest.raises(NodeError, match="readable Arrow file"):
        map_shard(tmp_path / "gone.arrow", shards[0])
