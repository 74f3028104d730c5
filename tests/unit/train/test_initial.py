import pytest
import torch

from steelrail.train.initial import deviation_of, fill_rows, seed_of

NAME, SHAPE = "blocks.0.attention.query.weight", (300, 8)


def rows(first: int, count: int, seed: int = 1, name: str = NAME) -> torch.Tensor:
    out = torch.full((count, 8), float("nan"))
    fill_rows(out, name, SHAPE, first, num_layers=2, seed=seed)
    return out


@pytest.mark.parametrize("num_shards", [1, 2, 3, 7, 300])
def test_values_do_not_depend_on_how_rows_are_cut(num_shards: int) -> None:
    length = -(-300 // num_shards)
    cut = [rows(start, min(length, 300 - start)) for start in range(0, 300, length)]
    assert torch.equal(torch.cat(cut), rows(0, 300))


def test_values_depend_on_seed_and_name() -> None:
    assert not torch.equal(rows(0, 300), rows(0, 300, seed=2))
    assert not torch.equal(rows(0, 300), rows(0, 300, name="blocks.1.attention.query.weight"))


def test_no_block_of_rows_repeats_another() -> None:
    whole = rows(0, 300)
    assert len({tuple(row.tolist()) for row in whole}) == 300


def test_values_have_the_deviation_of_their_kind() -> None:
    assert float(rows(0, 300).std()) == pytest.approx(0.02, rel=0.05)
    assert deviation_of("blocks.0.feed_forward.down.weight", 8) == pytest.approx(0.02 / 4)


def test_norms_start_at_one() -> None:
    out = torch.zeros(5)
    fill_rows(out, "norm.weight", (10,), 5, num_layers=2, seed=1)
    assert torch.equal(out, torch.ones(5))


def test_an_empty_shard_is_left_empty() -> None:
    assert rows(300, 0).shape == (0, 8)


def test_seeds_are_fixed_for_ever() -> None:
    assert seed_of(1, "embedding.weight", 0) == 3817329993714219156
