from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path

import pytest

from steelrail.clients import disk
from steelrail.config.load import load_run
from steelrail.errors import NodeError


def test_folder_that_is_not_mounted_is_named(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match=r"NVMe folder must be mounted, is missing \(.*absent\): mount the disk"):
        disk.require_writable_folder(tmp_path / "absent", 0.0)


def test_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NodeError, match="must be a folder, is a file"):
        disk.require_writable_folder(tmp_path / "file", 0.0)


def test_too_little_space_is_named_with_both_sizes(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match=r"free space must be at least 1000\.00 TB, is .*lower node\.min_free_gb"):
        disk.require_writable_folder(tmp_path, 1e6)


def test_fit_folder_passes_and_is_left_empty(tmp_path: Path) -> None:
    disk.require_writable_folder(tmp_path, 0.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "able to take bytes, is full"),
        (errno.EROFS, "writable, is not"),
        (errno.EACCES, "writable, is not"),
    ],
)
def test_refused_write_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(NodeError, match=message):
        disk.require_writable_folder(tmp_path, 0.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.ENOSPC, "is full"), (errno.EACCES, "is not permitted"), (errno.ENOENT, "is missing"), (errno.EIO, "EIO")],
)
def test_fault_of_the_disk_becomes_a_node_error(tmp_path: Path, number: int, message: str) -> None:
    with pytest.raises(NodeError, match=message), disk.on_disk(tmp_path):
        raise OSError(number, os.strerror(number))


def test_private_folder_is_closed_to_others(tmp_path: Path) -> None:
    made = disk.private_folder(tmp_path / "a" / "b")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    made.chmod(0o755)
    assert stat.S_IMODE(disk.private_folder(made).stat().st_mode) == 0o700


def test_folder_that_others_may_write_in_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o770)
    with pytest.raises(NodeError, match=r"closed to others, is of user id .* mode 0770"):
        disk.private_folder(tmp_path / "open")


def test_digest_is_that_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"steel")
    assert disk.sha256_file(tmp_path / "file") == hashlib.sha256(b"steel").hexdigest()


def test_free_bytes_are_those_of_the_file_system(tmp_path: Path) -> None:
    state = os.statvfs(tmp_path)
    assert disk.free_bytes(tmp_path) == pytest.approx(state.f_bavail * state.f_frsize, rel=0.05)


def test_removing_an_absent_folder_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    disk.remove_folder(tmp_path / "a")
    disk.remove_folder(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_runs_of_one_name_with_other_stores_never_meet_on_nvme() -> None:
    run = load_run("config/demo.yaml")
    other = run.model_copy(update={"store": run.store.model_copy(update={"prefix": "elsewhere"})})
    assert disk.node_root(run) != disk.node_root(other)
    assert disk.node_root(run) == disk.node_root(run.model_copy(update={"name": "another"}))
    assert Path(run.node.nvme) / f"steelrail-{os.geteuid()}" == disk.node_root(run).parent


def test_a_file_in_the_way_of_a_folder_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NodeError, match="path must be a folder, below folders, is a file, or below one"):
            disk.private_folder(path)
