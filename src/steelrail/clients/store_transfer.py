"""Big files to and from the store: which bytes go in which part, and the threads that move them."""

from __future__ import annotations

import base64
import os
import secrets
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from steelrail.clients import parallel
from steelrail.clients.disk import on_disk

T = TypeVar("T")
MIB = 2**20
# Below 32 MiB malloc gives out the same memory again; above, the kernel clears new pages for every part.
PART_BYTES = 24 * MIB
MAX_PARTS = 10_000
# Big stores give some 0.1 GB/s a connection; so many parts are in memory at once.
THREADS = 16


class Found(Protocol):
    """What is known of an object before it is fetched."""

    @property
    def key(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def etag(self) -> str: ...


def part_bytes(size_bytes: int) -> int:
    """Return the size of a part, in whole MiB, such that an object of ``size_bytes`` has at most 10,000 of them."""
    least = -(-size_bytes // MAX_PARTS)
    return max(PART_BYTES, -(-least // MIB) * MIB)


def crc32_of(data: bytes) -> str:
    """Return the CRC32 of a body as S3 writes it: a server that heeds it refuses a body that changed on the way.

    SeaweedFS does not compare the SHA-256 with which a request is signed; Ceph knows no CRC32, but compares that.
    """
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def spans(size_bytes: int, step_bytes: int) -> list[tuple[int, int]]:
    """Return (start, length) of consecutive pieces of at most ``step_bytes`` that cover ``size_bytes``."""
    return [(start, min(step_bytes, size_bytes - start)) for start in range(0, size_bytes, step_bytes)]


def fetch(found: Found, path: Path, read: Callable[[str, int, int, str], bytes]) -> None:
    """Write an object to ``path``, whole or not at all; ``read(key, start, length, etag)`` returns one range of it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with on_disk(path), temporary.open("xb") as file:
            file.truncate(found.size_bytes)

            def copy(span: tuple[int, int]) -> None:
                data = read(found.key, *span, found.etag)
                with on_disk(path):
                    _write_at(file.fileno(), data, span[0])

            parallel.in_parallel(copy, spans(found.size_bytes, PART_BYTES), THREADS)
            os.fsync(file.fileno())
        with on_disk(path):
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def send(path: Path, size_bytes: int, put: Callable[[int, bytes], T], threads: int) -> list[T]:
    """Send a file part by part, ``threads`` at once. Returns what ``put(number, data)`` returns of each, in order."""
    step = part_bytes(size_bytes)
    with on_disk(path), path.open("rb") as file:

        def copy(span: tuple[int, int]) -> T:
            with on_disk(path):
                data = os.pread(file.fileno(), span[1], span[0])
            return put(span[0] // step + 1, data)

        return parallel.in_parallel(copy, spans(size_bytes, step), threads)


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
