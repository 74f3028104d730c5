"""Page-locked memory, with a driver that only counts."""

from __future__ import annotations

import gc
import logging

import pytest
import torch

from steelrail.checkpoints import pinned, snapshot


class Driver:
    """Stands for CUDA's runtime; answers ``code``."""

    def __init__(self, code: int) -> None:
        self.code, self.locked = code, dict[int, int]()

    def cudaHostRegister(self, address: int, size_bytes: int, flags: int) -> int:
        if not self.code:
            self.locked[address] = size_bytes
        return self.code

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Driver:
    found = Driver(getattr(request, "param", 0))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: found)
    return found


def test_memory_is_locked_to_the_byte_and_given_back_with_the_last_tensor_in_it(driver: Driver) -> None:
    memory = pinned.pinned_memory(1_000_000)
    assert list(driver.locked.values()) == [1_000_000]
    first = torch.frombuffer(memory, dtype=torch.float32, count=100, offset=512)
    last = torch.frombuffer(memory, dtype=torch.float32, count=100, offset=4096).view(10, 10)[2:]
    assert float(first.sum()) == 0.0
    del memory, first
    gc.collect()
    assert len(driver.locked) == 1
    del last
    gc.collect()
    assert driver.locked == {}


@pytest.mark.parametrize("driver", [2], indirect=True)
def test_memory_that_may_not_be_locked_is_used_as_it_is_and_said(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        memory = pinned.pinned_memory(4096)
    assert float(torch.frombuffer(memory, dtype=torch.uint8).sum()) == 0.0
    assert "4.10 kB of host memory could not be page-locked (CUDA error 2)" in caplog.text


def test_every_tensor_of_a_gpu_has_a_storage_of_its_own_in_one_piece_of_memory(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_on_gpu", lambda part: True)
    state = {"a": torch.ones(3, 5), "empty": torch.ones(0, 4), "s": torch.tensor(1.0), "b": torch.ones(7).double()}
    buffers = snapshot._buffers(state)
    assert {name: (one.shape, one.dtype) for name, one in buffers.items()} == {
        name: (one.shape, one.dtype) for name, one in state.items()
    }
    assert all(one.untyped_storage().nbytes() == one.numel() * one.element_size() for one in buffers.values())
    assert len(driver.locked) == 1
    for name, value in state.items():
        buffers[name].copy_(value)
    assert all(torch.equal(buffers[name], value) for name, value in state.items())
