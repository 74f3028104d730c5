"""Stage in: what is verified stays, what is damaged or missing is fetched, and what cannot be had is said."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steelrail.artifacts.shards import DataShard
from steelrail.clients import disk
from steelrail.clients.disk import node_root
from steelrail.clients.store import Store
from steelrail.config import schema
from steelrail.errors import InputError, NodeError, StoreError
from steelrail.shards import stagein
from steelrail.shards.part import shards_folder
from steelrail.shards.stagein import Follower, Staged, StageIn, is_verified, stage_in

MakeRun = Callable[..., schema.Run]
NUM_SHARDS = 6


@pytest.fixture
def shards(store: Store) -> list[DataShard]:
    return [stored(store, index) for index in range(NUM_SHARDS)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "nvme" / "steelrail" / "r" / "shards"


def content(index: int) -> bytes:
    return bytes([index]) * (1000 + index)


def stored(store: Store, index: int) -> DataShard:
    name, data = f"part-00000-{index:05d}.train.arrow", content(index)
    key = store.key("r", "shards", "k", name)
    store.put(key, data)
    return DataShard(
        name=name,
        split="train",
        part=0,
        documents=1,
        tokens=1,
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        object_key=key,
    )


def run_once(store: Store, shards: list[DataShard], folder: Path) -> Staged:
    staging = StageIn(store, shards, folder)
    try:
        return staging.wait()
    finally:
        staging.close()


def contents(shards: list[DataShard], folder: Path) -> list[bytes]:
    return [(folder / shard.name).read_bytes() for shard in shards]


def test_everything_is_fetched_once_and_then_found(store: Store, shards: list[DataShard], folder: Path) -> None:
    total = sum(shard.size_bytes for shard in shards)
    assert run_once(store, shards, folder) == Staged(NUM_SHARDS, total, total)
    assert contents(shards, folder) == [content(index) for index in range(NUM_SHARDS)]
    assert run_once(store, shards, folder) == Staged(NUM_SHARDS, total, 0)


def test_an_untouched_file_is_not_read_again(
    store: Store, shards: list[DataShard], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_once(store, shards, folder)
    read: list[Path] = []
    monkeypatch.setattr(stagein, "sha256_file", lambda path: read.append(path) or disk.sha256_file(path))
    run_once(store, shards, folder)
    assert read == []


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)


def flip_in_secret(path: Path) -> None:
    """Change a bit and set the times back, as a copy by another tool would: the inode differs."""
    before, other = path.stat(), path.with_suffix(".other")
    other.write_bytes(path.read_bytes())
    flip(other)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize(
    "damage",
    [flip, flip_in_secret, Path.unlink, lambda path: path.write_bytes(b""), lambda path: os.truncate(path, 10)],
)
def test_a_damaged_or_missing_file_is_fetched_again_and_no_other(
    store: Store, shards: list[DataShard], folder: Path, damage: Callable[[Path], Any]
) -> None:
    run_once(store, shards, folder)
    damage(folder / shards[2].name)
    assert run_once(store, shards, folder).fetched_bytes == shards[2].size_bytes
    assert contents(shards, folder) == [content(index) for index in range(NUM_SHARDS)]


@pytest.mark.parametrize("record", [b"", b"{", b"[]", b'{"sha256": 1}'])
def test_a_torn_record_costs_a_read_and_nothing_more(
    store: Store, shards: list[DataShard], folder: Path, record: bytes
) -> None:
    run_once(store, shards, folder)
    (folder / ".verified" / f"{shards[0].name}.json").write_bytes(record)
    assert run_once(store, shards, folder).fetched_bytes == 0
    assert is_verified(folder / shards[0].name, shards[0])


def test_a_file_of_another_key_with_the_same_name_is_replaced(
    store: Store, shards: list[DataShard], folder: Path
) -> None:
    run_once(store, shards, folder)
    store.put("other", b"new text")
    new = shards[0].model_copy(
        update={"sha256": hashlib.sha256(b"new text").hexdigest(), "size_bytes": 8, "object_key": "other"}
    )
    assert run_once(store, [new], folder) == Staged(1, 8, 8)
    assert (folder / new.name).read_bytes() == b"new text"


def test_a_file_that_is_there_and_right_is_taken_without_the_store(
    store: Store, shards: list[DataShard], folder: Path
) -> None:
    run_once(store, shards, folder)
    for record in (folder / ".verified").iterdir():
        record.unlink()
    for shard in shards:
        store.delete(shard.object_key)
    assert run_once(store, shards, folder).fetched_bytes == 0


def test_leftovers_of_a_killed_copy_are_removed(store: Store, shards: list[DataShard], folder: Path) -> None:
    folder.mkdir(parents=True)
    left = folder / f".{shards[0].name}.0a1b2c3d"
    left.write_bytes(b"half")
    run_once(store, shards, folder)
    assert not left.exists()
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == [shard.name for shard in shards]


def test_an_object_damaged_in_the_store_is_a_store_error_and_leaves_nothing(
    store: Store, shards: list[DataShard], folder: Path
) -> None:
    store.put(shards[1].object_key, b"x" * shards[1].size_bytes)
    with pytest.raises(StoreError, match="is damaged"):
        run_once(store, shards, folder)
    assert not (folder / shards[1].name).exists()
    assert not list(folder.glob(".part-*"))


def test_an_object_missing_in_the_store_is_a_store_error(store: Store, shards: list[DataShard], folder: Path) -> None:
    store.delete(shards[3].object_key)
    with pytest.raises(StoreError, match="missing"):
        run_once(store, shards, folder)


def test_waiting_for_some_does_not_wait_for_all(store: Store, shards: list[DataShard], folder: Path) -> None:
    gate, real = threading.Event(), store.get_file

    def held(key: str, path: Path) -> int:
        if key == shards[-1].object_key:
            gate.wait(20)
        return real(key, path)

    store.get_file = held  # type: ignore[method-assign]
    staging = StageIn(store, shards, folder)
    staging.wait_for([shard.name for shard in shards[:-1]])
    assert not (folder / shards[-1].name).exists()
    gate.set()
    assert staging.wait().files == NUM_SHARDS
    staging.close()


def test_every_byte_is_reported(store: Store, shards: list[DataShard], folder: Path) -> None:
    reported: list[int] = []
    for _ in range(2):
        staging = StageIn(store, shards, folder, reported.append)
        staging.wait()
        staging.close()
    assert sorted(reported) == sorted(2 * [shard.size_bytes for shard in shards])


Usage = namedtuple("Usage", "total used free")


def test_a_full_disk_is_a_node_error_before_anything_is_copied(
    store: Store, shards: list[DataShard], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: Usage(10, 10, 10))
    with pytest.raises(NodeError, match=r"free space must be at least 6.*kB, is 10 B"):
        StageIn(store, shards, folder)


def test_when_space_is_short_shards_of_other_keys_make_room(
    store: Store, shards: list[DataShard], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(parents=True)
    old, foreign = folder / "part-00007-00000.train.arrow", folder / "notes.txt"
    for path in (old, foreign):
        path.write_bytes(b"x")
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: Usage(10, 10, 10 if old.exists() else 10**9))
    run_once(store, shards, folder)
    assert (old.exists(), foreign.exists()) == (False, True)


def test_a_disk_that_fills_up_while_copying_is_a_node_error(
    store: Store, shards: list[DataShard], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *words: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(NodeError, match="is full"):
        run_once(store, shards, folder)


def test_nvme_that_is_not_mounted_is_a_node_error(s3: Any, make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("x")
    (tmp_path / "nvme").rmdir()
    with pytest.raises(NodeError, match="NVMe folder must be mounted, is missing"):
        stage_in(run, [])
    assert not (tmp_path / "nvme").exists()


def test_the_runs_own_folder_is_used(store: Store, shards: list[DataShard], make_run: MakeRun) -> None:
    run = make_run("x")
    staging = stage_in(run, shards)
    assert staging.wait().files == NUM_SHARDS
    staging.close()
    assert shards_folder(run) == node_root(run) / "r" / "shards"
    assert contents(shards, shards_folder(run)) == [content(index) for index in range(NUM_SHARDS)]


@pytest.mark.parametrize(
    "name", ["../evil.arrow", "/etc/passwd", "part-0-0.train.arrow", "part-00000-00000.train.arrow\n"]
)
def test_names_that_we_do_not_give_never_become_paths(
    store: Store, shards: list[DataShard], folder: Path, name: str
) -> None:
    with pytest.raises(InputError, match="data shard's name"):
        StageIn(store, [shards[0].model_copy(update={"name": name})], folder)
    with pytest.raises(InputError, match="data shard's name"):
        Follower([shards[0].model_copy(update={"name": name})], folder, 1.0)


def test_a_follower_passes_when_the_node_has_the_files(store: Store, shards: list[DataShard], folder: Path) -> None:
    follower = Follower(shards, folder, 20.0)
    waiting = threading.Thread(target=follower.wait_for, args=([shard.name for shard in shards],))
    waiting.start()
    run_once(store, shards, folder)
    waiting.join(20)
    assert not waiting.is_alive()


def test_a_follower_gives_up_in_time_and_names_the_file(store: Store, shards: list[DataShard], folder: Path) -> None:
    run_once(store, shards, folder)
    flip(folder / shards[0].name)
    with pytest.raises(NodeError, match=shards[0].name):
        Follower(shards, folder, 0.1).wait_for([shards[0].name])
