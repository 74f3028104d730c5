"""The copy of a GPU's state in host memory: it is of the moment of the save, whatever training does next."""

import time

import pytest
import torch

from steelrail.checkpoints.snapshot import HostCopy

pytestmark = pytest.mark.skipif(torch.cuda.device_count() == 0, reason="no CUDA device here")


def state() -> dict[str, torch.Tensor]:
    return {
        "big": torch.randn(64, 2**20, device="cuda"),
        "odd": torch.randn(3, 7, device="cuda"),
        "none": torch.empty(0),
    }


def test_a_change_that_is_ordered_after_the_copy_is_not_in_it() -> None:
    live, copy = state(), HostCopy()
    copy.prepare(live)
    for _ in range(3):
        before = {name: value.clone() for name, value in live.items()}
        taken = copy.take(live)
        copy.before_change()
        for value in live.values():
            value.add_(1.0)
        copy.wait()
        assert all(torch.equal(taken[name], before[name].cpu()) for name in before)


def test_the_thread_that_saves_is_not_held_up_by_the_copy() -> None:
    live, copy = state(), HostCopy()
    copy.take(live)
    copy.wait()
    torch.cuda._sleep(400_000_000)  # some 0.2 s of the GPU before the state is final
    live["odd"].add_(1.0)
    began = time.perf_counter()
    taken = copy.take(live)
    held = time.perf_counter() - began
    copy.wait()
    assert held < (time.perf_counter() - began) / 2
    assert torch.equal(taken["odd"], live["odd"].cpu())


def test_host_memory_of_a_gpus_state_is_page_locked() -> None:
    live, copy = state(), HostCopy()
    taken = copy.take(live)
    assert taken["big"].is_pinned() and taken["odd"].is_pinned() and not taken["none"].is_pinned()
