"""The order of data: a permutation, asked for at any place, shared by any number of ranks."""

from __future__ import annotations

import time

import numpy as np
import pytest

from steelrail.shards.order import Order, permute


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 255, 1000, 4096, 10_007])
@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_every_epoch_visits_every_sequence_once(size: int, seed: int) -> None:
    order = Order(size, seed)
    for epoch in range(3):
        assert sorted(order.ids(epoch * size, size).tolist()) == list(range(size))


def test_epochs_and_seeds_differ() -> None:
    first, second, other = Order(1000, 1).ids(0, 1000), Order(1000, 1).ids(1000, 1000), Order(1000, 2).ids(0, 1000)
    assert np.mean(first == second) < 0.02
    assert np.mean(first == other) < 0.02
    assert np.mean(first == np.arange(1000)) < 0.02


def test_order_is_fixed_for_ever() -> None:
    assert Order(1000, 7).ids(0, 8).tolist() == [798, 398, 164, 822, 881, 208, 545, 408]
    assert Order(10**9 + 7, 7).ids(10**12, 4).tolist() == [954105183, 272111294, 231084003, 35049195]


def test_any_place_gives_what_the_whole_order_has_there() -> None:
    order = Order(777, 3)
    whole = order.ids(0, 3000)
    for start, count in ((0, 1), (776, 2), (1553, 700), (2999, 1), (5, 0)):
        assert order.ids(start, count).tolist() == whole[start : start + count].tolist()


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_any_number_of_ranks_sees_the_same_global_batches(world_size: int) -> None:
    order = Order(101, 5)
    for step in (0, 1, 12, 13, 500):  # 101 is no multiple of 8: some batches lie across two epochs
        shared = [order.step_ids(step, 8, rank, world_size) for rank in range(world_size)]
        assert np.concatenate(shared).tolist() == order.ids(step * 8, 8).tolist()


def test_a_batch_larger_than_the_data_goes_on_into_the_next_epoch() -> None:
    ids = Order(3, 1).step_ids(0, 8).tolist()
    assert [sorted(ids[:3]), sorted(ids[3:6])] == [[0, 1, 2], [0, 1, 2]]


def test_neighbours_are_scattered() -> None:
    ids = Order(100_000, 1).ids(0, 10_000)
    steps = np.abs(np.diff(ids))
    assert np.mean(steps) == pytest.approx(100_000 / 3, rel=0.05)
    counts, _ = np.histogram(ids, bins=20, range=(0, 100_000))
    assert counts.min() > 400 and counts.max() < 600


def test_a_far_place_costs_no_more_than_the_first() -> None:
    order, began = Order(10**10, 1), time.perf_counter()
    order.ids(9 * 10**15, 1000)
    assert time.perf_counter() - began < 1.0


def test_permute_leaves_its_input_alone() -> None:
    places = np.arange(100, dtype=np.uint64)
    permute(places, 100, 1, 0)
    assert places.tolist() == list(range(100))
