import errno

import pyarrow as pa
import pytest
import torch

from steelrail.errors import StoreError
from steelrail.launch.memory import GPU, HOST, ran_out

ENFORCED = (
    "[enforce fail at alloc_cpu.cpp:128] data. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 "
    "bytes. Error code 12 (Cannot allocate memory)"
)
NCCL = (
    "NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled cuda error, NCCL version 2.27.7\nncclUnhandledCudaError: Call "
    "to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'"
)


@pytest.mark.parametrize(
    ("error", "which"),
    [
        (MemoryError(), HOST),
        (pa.ArrowMemoryError("malloc of size 10 failed"), HOST),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), HOST),
        (RuntimeError(ENFORCED), HOST),
        (RuntimeError("std::bad_alloc"), HOST),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), GPU),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"), GPU),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), GPU),
        (torch.distributed.DistBackendError(NCCL), GPU),
        (OSError(errno.ENOSPC, "No space left on device"), None),
        (RuntimeError("Connection closed by peer"), None),
        (ValueError("bad"), None),
    ],
)
def test_memory_that_ran_out_is_known_whoever_says_so(error, which):
    assert ran_out(error) == which


def test_an_error_that_was_raised_from_want_of_memory_is_one():
    error = StoreError("put must be done, is not")
    error.__cause__ = MemoryError()
    assert ran_out(error) == HOST


def test_what_torch_says_when_the_host_has_no_memory_left_is_known():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8)
    assert ran_out(caught.value) == HOST
