"""Host memory that a GPU can copy into by itself, of exactly the size asked for.

torch's own page-locked memory is rounded up to a power of two, up to twice what a state needs.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import weakref
from typing import Any

import torch

from steelrail.log import logger
from steelrail.units import show_bytes

log = logger(__name__)


def pinned_memory(size_bytes: int) -> Any:
    """Return page-locked memory for ``torch.frombuffer``, zeros. Given back when no tensor lies in it any more.

    Where the system refuses to lock it, it is ordinary memory, and that is said: copies into it are right too, but the
    thread that asks for one is held up until it is made.
    """
    pages = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    memory = (ctypes.c_byte * size_bytes).from_buffer(pages)
    torch.frombuffer(memory, dtype=torch.uint8).zero_()  # by all of torch's threads: the driver touches pages on one
    address = ctypes.addressof(memory)
    code = int(torch.cuda.cudart().cudaHostRegister(address, size_bytes, 1))  # type: ignore[no-untyped-call]
    if code:
        log.warning("%s of host memory could not be page-locked (CUDA error %d)", show_bytes(size_bytes), code)
    else:
        # It holds the pages: they must not be given back while the driver knows them.
        weakref.finalize(memory, _unlock, address, pages).atexit = False
    return memory


def _unlock(address: int, pages: mmap.mmap) -> None:
    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
