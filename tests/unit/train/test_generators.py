import pickle

import pytest
import torch

from steelrail.errors import CheckpointError
from steelrail.train.generators import generator_state, seed_generators, set_generators

CPU = torch.device("cpu")


def test_generators_go_on_from_their_state_to_the_last_bit() -> None:
    seed_generators(7, 0, 2, 0)
    torch.rand(5)
    state = generator_state(CPU)
    expected = torch.rand(1000), torch.randperm(100)
    torch.rand(77)
    set_generators(state, CPU)
    assert all(torch.equal(*pair) for pair in zip(expected, (torch.rand(1000), torch.randperm(100)), strict=True))


def test_every_rank_world_size_step_and_seed_draws_other_numbers() -> None:
    drawn = set()
    for of in ((7, 0, 2, 0), (7, 1, 2, 0), (7, 0, 4, 0), (7, 0, 2, 9), (8, 0, 2, 0)):
        seed_generators(*of)
        drawn.add(float(torch.rand(1, dtype=torch.float64)))
    assert len(drawn) == 5


@pytest.mark.parametrize("data", [b"", b"torn", pickle.dumps({"cpu": 1}), generator_state(CPU)[:-1]])
def test_a_state_that_is_none_is_refused_and_changes_nothing(data: bytes) -> None:
    before = torch.get_rng_state()
    with pytest.raises(CheckpointError, match="state of the random generators must be of cpu, is not"):
        set_generators(data, CPU)
    assert torch.equal(before, torch.get_rng_state())


def test_a_state_without_a_gpus_generator_is_refused_on_a_gpu() -> None:
    with pytest.raises(CheckpointError, match="must be of cpu and cuda, is not \\(of cpu\\)"):
        set_generators(generator_state(CPU), torch.device("cuda", 0))
