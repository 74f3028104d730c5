"""Planning parts: properties over many random corpora."""

from __future__ import annotations

import random

import pytest

from steelrail.artifacts.corpus import CorpusObject, RowGroup
from steelrail.shards.plan import plan_parts


def corpus(sizes: list[list[int]]) -> list[CorpusObject]:
    return [
        CorpusObject(
            uri=f"/{index}.parquet",
            size_bytes=1,
            digest=str(index),
            rows=len(groups),
            row_groups=tuple(RowGroup(rows=1, size_bytes=size) for size in groups),
        )
        for index, groups in enumerate(sizes)
    ]


def random_sizes(seed: int) -> list[list[int]]:
    chance = random.Random(seed)
    return [[chance.choice([0, 1, chance.randrange(10**9)]) for _ in range(chance.randrange(7))] for _ in range(9)]


@pytest.mark.parametrize("num_parts", [1, 2, 3, 8, 50])
def test_parts_one_after_the_other_are_the_corpus_in_order(num_parts: int) -> None:
    for seed in range(100):
        objects = corpus(random_sizes(seed))
        parts = plan_parts(objects, num_parts)
        planned = [(piece.corpus_object.uri, group) for part in parts for piece in part for group in piece.groups]
        assert planned == [(one.uri, group) for one in objects for group in range(len(one.row_groups))]
        assert len(parts) == num_parts


@pytest.mark.parametrize("num_parts", [1, 2, 3, 8, 50])
def test_no_part_exceeds_its_share_by_more_than_the_largest_row_group(num_parts: int) -> None:
    for seed in range(100):
        sizes = random_sizes(seed)
        parts = plan_parts(corpus(sizes), num_parts)
        flat = [size for groups in sizes for size in groups]
        largest = max((sum(piece.size_bytes for piece in part) for part in parts), default=0)
        assert largest <= sum(flat) / num_parts + max(flat, default=0)


def test_equal_row_groups_are_shared_equally() -> None:
    parts = plan_parts(corpus([[5] * 12, [5] * 12]), 4)
    assert [sum(len(piece.groups) for piece in part) for part in parts] == [6, 6, 6, 6]


def test_one_row_group_goes_to_one_part_and_the_others_are_empty() -> None:
    parts = plan_parts(corpus([[100]]), 3)
    assert sorted(len(part) for part in parts) == [0, 0, 1]


def test_row_groups_without_bytes_lose_no_rows() -> None:
    parts = plan_parts(corpus([[0, 0, 0]]), 2)
    assert sum(piece.rows for part in parts for piece in part) == 3
