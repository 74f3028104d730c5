"""The door to local disks: is this folder fit, what is in this file, and copies that are whole or not there."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from steelrail.config.keys import digest
from steelrail.config.schema import Run
from steelrail.errors import NodeError, must
from steelrail.units import GB, show_bytes

CHUNK_BYTES = 4 * 2**20
PRIVATE = 0o700


@contextlib.contextmanager
def on_disk(path: Path) -> Iterator[None]:
    """Turn what the disk says about ``path`` into ``NodeError``: full, gone, not allowed."""
    try:
        yield
    except OSError as error:
        raise NodeError(_explain(error, path)) from error


def _explain(error: OSError, path: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return must(
            "disk", "able to take more bytes", "full", path, "free space there, or set node.nvme to a bigger disk"
        )
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return must("path", "a folder, below folders", "a file, or below one", path, "move the file away")
    if error.errno == errno.ENOENT:
        return must("path", "there", "missing", path, "check that the disk is mounted and nothing removed it")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return must("path", "open to this user", "not permitted", path, "check owner, mode and mount options")
    name = errno.errorcode.get(error.errno or 0, type(error).__name__)
    return must("disk", "sound", f"failing ({name})", path, "look at the kernel's log on this node")


def free_bytes(path: Path) -> int:
    """Return the bytes that this user may still write on the file system of ``path``."""
    with on_disk(path):
        return shutil.disk_usage(path).free


def require_writable_folder(path: Path, min_free_gb: float) -> None:
    """Raise ``NodeError`` unless this user can write in ``path``, with ``min_free_gb`` (10^9 bytes) free."""
    do = "mount the disk, or set node.nvme to the folder where it is mounted"
    if not path.exists():
        raise NodeError(must("NVMe folder", "mounted", "missing", path, do))
    if not path.is_dir():
        raise NodeError(must("NVMe folder", "a folder", "a file", path, do))
    _try_to_write(path)
    free = free_bytes(path)
    if free < min_free_gb * GB:
        do = "remove old files there, or lower node.min_free_gb"
        raise NodeError(must("free space", f"at least {show_bytes(min_free_gb * GB)}", show_bytes(free), path, do))


def _try_to_write(folder: Path) -> None:
    """Write, flush and remove a small file: rights, mount options and a full disk show themselves only then."""
    trial = folder / f".steelrail-{secrets.token_hex(8)}"
    try:
        with trial.open("xb") as file:
            file.write(b"\0" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NodeError(
                must("NVMe folder", "able to take bytes", "full", folder, "remove old files there")
            ) from error
        do = "give this user write access, or set node.nvme to a folder of his"
        raise NodeError(must("NVMe folder", "writable", f"not ({error.strerror})", folder, do)) from error
    finally:
        with contextlib.suppress(OSError):
            trial.unlink()


def node_root(run: Run) -> Path:
    """Return the folder on a node's NVMe of everything that this user's runs keep with this run's store.

    Another user, or a run of the same name with another store, has another folder: what lies there is never mixed.
    """
    store = digest([run.store.endpoint, run.store.bucket, run.store.prefix])[:8]
    return Path(run.node.nvme) / f"steelrail-{os.geteuid()}" / store


def private_folder(path: Path) -> Path:
    """Make ``path`` (and what is above it) where missing, open to this user alone, and return it.

    Raises ``NodeError`` when it is there but belongs to somebody else or others may write in it.
    """
    with on_disk(path):
        path.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        state = path.stat()
        if state.st_uid != os.geteuid() or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            actual = f"of user id {state.st_uid}, mode {stat.S_IMODE(state.st_mode):04o}"
            raise NodeError(
                must("folder", "this user's, closed to others", actual, path, "chmod 0700 it, or remove it")
            )
        if stat.S_IMODE(state.st_mode) != PRIVATE:
            path.chmod(PRIVATE)
    return path


def sha256_file(path: Path) -> str:
    """Return the hex SHA-256 of a file. Raises ``NodeError``."""
    with on_disk(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_folder(path: Path) -> None:
    """Remove a folder and what is in it; one that is not there is no error. Raises ``NodeError``."""
    with on_disk(path), contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)
