from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steelrail.checkpoints import fence, upload
from steelrail.checkpoints.layout import METADATA, StepId
from steelrail.checkpoints.manifest import CheckpointFile, Manifest
from steelrail.checkpoints.place import Home
from steelrail.checkpoints.upload import Uploader
from steelrail.clients import store_transfer
from steelrail.clients.store import Store
from steelrail.config.schema import Checkpoints
from steelrail.errors import StoreError

BIG, SMALL = 6 * 2**20, 1000
FILES = {"__0_0.distcp": BIG, "__1_0.distcp": BIG, "__2_0.distcp": BIG, METADATA: SMALL}
WHICH = StepId(10, 1)


@pytest.fixture
def home(store: Store, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr(store_transfer, "PART_BYTES", 5 * 2**20)
    monkeypatch.setattr(upload, "REPEAT_SECONDS", 0.1)
    key = request.node.name
    return Home(store, "run", key, fence.claim(store, "run", key), tmp_path, Checkpoints())


@pytest.fixture
def manifest(home: Home) -> Manifest:
    """A save of three big files and a small one, on NVMe."""
    folder = home.folder(WHICH)
    folder.mkdir(parents=True)
    for name, size in FILES.items():
        (folder / name).write_bytes(name.encode() * (size // len(name)) + bytes(size % len(name)))
    files = tuple(
        CheckpointFile(name=name, size_bytes=size, sha256="", rank=0, node_rank=0, host="node1")
        for name, size in FILES.items()
    )
    return Manifest(
        run="run", key=home.key, step=WHICH.step, epoch=WHICH.epoch, tokens=0, world_size=1, num_nodes=1, files=files,
        parent_step=None, parent_epoch=None, created=1000.0, versions={}, extra={},
    )  # fmt: skip


@pytest.fixture
def uploader(home: Home) -> Iterator[Uploader]:
    made = Uploader(home, 0, lambda kind, **data: None)
    yield made
    made.close()


def test_a_big_file_begins_while_another_is_under_way(
    home: Home, manifest: Manifest, uploader: Uploader, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, both, threads = home.store.put_file, threading.Barrier(2, timeout=20), list[int]()

    def put_file(key: str, path: Path, parts: int) -> Any:
        threads.append(parts)
        if path.name in ("__0_0.distcp", "__1_0.distcp"):
            both.wait()
        return real(key, path, parts)

    monkeypatch.setattr(home.store, "put_file", put_file)
    uploader.admit(manifest, None)
    assert uploader.flush(60) and uploader.status.durable == WHICH
    # So many parts are in memory, however many files they are of.
    assert set(threads) == {store_transfer.THREADS // upload.FILES_AT_ONCE}


def test_what_was_sent_before_a_failure_is_not_sent_again(
    home: Home, manifest: Manifest, uploader: Uploader, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, sent, failed = home.store.put_file, Counter[str](), threading.Event()

    def put_file(key: str, path: Path, parts: int) -> Any:
        if path.name == "__1_0.distcp" and not failed.is_set():
            failed.set()
            raise StoreError("away for a moment")
        sent[path.name] += 1
        return real(key, path, parts)

    monkeypatch.setattr(home.store, "put_file", put_file)
    uploader.admit(manifest, None)
    assert uploader.flush(60) and uploader.status.durable == WHICH
    assert failed.is_set() and sent == Counter(list(FILES))
    for name, size in FILES.items():
        found = home.store.head(home.object_key(WHICH, name))
        assert found is not None and found.size_bytes == size
