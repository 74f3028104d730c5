from pathlib import Path

import pytest
import torch

from steelrail.clients.device import own_device
from steelrail.clients.ranks import RankPlace
from steelrail.config.load import load_run
from steelrail.config.schema import Run
from steelrail.errors import FabricError

CONFIG = Path(__file__).parents[3] / "config"
SECOND = RankPlace(rank=1, world_size=2, local_rank=1, node_rank=0, num_nodes=1, host="node1")


@pytest.fixture
def on_gpus() -> Run:
    return load_run(CONFIG / "llama3-70b-4x16.yaml")


def test_a_rank_takes_the_gpu_of_its_local_rank(on_gpus: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert own_device(on_gpus, SECOND, 1, FabricError) == torch.device("cuda", 1)
    assert current == [torch.device("cuda", 1)]


def test_ranks_never_share_the_one_gpu_that_slurm_gave(on_gpus: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(FabricError, match=r"GPUs that torch sees must be at least 2, is 1 \(node1\)"):
        own_device(on_gpus, SECOND, 1, FabricError)


def test_a_rank_on_cpus_has_the_threads_it_was_given() -> None:
    before = torch.get_num_threads()
    try:
        assert own_device(load_run(CONFIG / "demo.yaml"), SECOND, 3, FabricError) == torch.device("cpu")
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
