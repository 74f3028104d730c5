"""Stage in: the data shards of a run from the store onto a node's NVMe, verified, in order of need.

Idempotent and cheap to repeat on every attempt: what was verified is remembered by size, time and inode of the file, so
that an untouched file is not read again and a changed one is found and fetched again.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from steelrail.artifacts.files import Artifact, put_whole
from steelrail.artifacts.shards import DataShard
from steelrail.clients import clock
from steelrail.clients.disk import free_bytes, on_disk, private_folder, require_writable_folder, sha256_file
from steelrail.clients.store import Store
from steelrail.config.schema import Run
from steelrail.errors import InputError, NodeError, StoreError, must
from steelrail.log import logger
from steelrail.shards.part import shards_folder
from steelrail.units import show_bytes

THREADS = 4
TRIES = 2
SHARD_NAME = re.compile(r"part-\d{5,}-\d{5,}\.(train|heldout)\.arrow")
_VERIFIED = ".verified"
_log = logger(__name__)


class Verified(Artifact):
    """What a file looked like when its digest was last computed."""

    sha256: str
    size_bytes: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True)
class Staged:
    """What stage in did so far. ``fetched_bytes`` came from the store; the rest was there."""

    files: int
    size_bytes: int
    fetched_bytes: int


class StageIn:
    """One node's copy under way in background threads. One rank per node makes it; the others use ``Follower``.

    ``on_bytes`` is told the bytes of each data shard as it becomes ready, from those threads.
    """

    def __init__(
        self, store: Store, shards: Sequence[DataShard], folder: Path, on_bytes: Callable[[int], None] | None = None
    ) -> None:
        self._store, self._folder, self._on_bytes = store, folder, on_bytes or (lambda size_bytes: None)
        self._lock = threading.Lock()
        self._done = Staged(0, 0, 0)
        check_names(shards)
        _prepare(folder, shards)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="stage-in")
        self._futures: dict[str, Future[None]] = {one.name: self._pool.submit(self._stage, one) for one in shards}

    def wait_for(self, names: Iterable[str]) -> None:
        """Return when these data shards are on NVMe and verified. Raises what went wrong with them."""
        for name in names:
            self._futures[name].result()

    def wait(self) -> Staged:
        """Return when every data shard is there. Raises what went wrong."""
        self.wait_for(self._futures)
        return self.staged

    @property
    def staged(self) -> Staged:
        """What is done so far."""
        with self._lock:
            return self._done

    def close(self) -> None:
        """Begin no further copy, and return when those under way have ended."""
        self._pool.shutdown(cancel_futures=True)

    def _stage(self, shard: DataShard) -> None:
        path = self._folder / shard.name
        found = is_verified(path, shard) or _verify(path, shard)
        if not found:
            _fetch(self._store, shard, path)
        with self._lock:
            fetched = 0 if found else shard.size_bytes
            before = self._done
            self._done = Staged(before.files + 1, before.size_bytes + shard.size_bytes, before.fetched_bytes + fetched)
        self._on_bytes(shard.size_bytes)


class Follower:
    """Waits for what another rank of the same node stages in."""

    def __init__(self, shards: Sequence[DataShard], folder: Path, timeout_seconds: float) -> None:
        check_names(shards)
        self._shards = {shard.name: shard for shard in shards}
        self._folder, self._timeout_seconds = folder, timeout_seconds

    def wait_for(self, names: Iterable[str]) -> None:
        """Return when these data shards are on NVMe and verified. Raises ``NodeError`` after the time-out."""
        until = clock.monotonic() + self._timeout_seconds
        for name in names:
            while not is_verified(self._folder / name, self._shards[name]):
                if clock.monotonic() > until:
                    raise self._late(name)
                clock.sleep(0.05)

    def _late(self, name: str) -> NodeError:
        do = "see the log of the node's first rank, or raise launch.startup_seconds"
        be = f"staged in within {self._timeout_seconds:.0f} s"
        return NodeError(must("data shard", be, "not there", self._folder / name, do))


def stage_in(run: Run, shards: Sequence[DataShard], on_bytes: Callable[[int], None] | None = None) -> StageIn:
    """Begin to copy ``shards``, in this order, onto this node's NVMe and return at once.

    Raises ``NodeError`` when NVMe is not mounted, not writable or too full for them.
    """
    # The probes ask for node.min_free_gb; here the shards' own bytes count, and most of them may be there already.
    require_writable_folder(Path(run.node.nvme), 0.0)
    return StageIn(Store.open(run.store), shards, shards_folder(run), on_bytes)


def check_names(shards: Sequence[DataShard]) -> None:
    """Raise ``InputError`` unless every name is one that we give: names become paths."""
    for shard in shards:
        if not SHARD_NAME.fullmatch(shard.name):
            do = "rerun the shards stage"
            raise InputError(must("data shard's name", "part-N-N.train.arrow or so", repr(shard.name), "manifest", do))


def is_verified(path: Path, shard: DataShard) -> bool:
    """Say whether this very file was found to have the shard's digest, and was not touched since."""
    try:
        known = Verified.model_validate_json(_record(path).read_bytes())
        return known == _looks(path, shard.sha256) and known.size_bytes == shard.size_bytes
    except (OSError, ValidationError):
        return False


def _verify(path: Path, shard: DataShard) -> bool:
    """Read a file; when it has the shard's digest, remember that and say yes."""
    try:
        before = _looks(path, shard.sha256)
    except FileNotFoundError:
        return False
    if before.size_bytes != shard.size_bytes or sha256_file(path) != shard.sha256:
        return False
    with on_disk(path):
        _record(path).parent.mkdir(exist_ok=True)
        put_whole(_record(path), before.model_dump_json().encode())
    return True


def _fetch(store: Store, shard: DataShard, path: Path) -> None:
    """Copy one data shard from the store: temporary name, digest, rename. Raises ``StoreError`` when it is damaged."""
    if path.exists():
        _log.warning("stage in: %s is not as the manifest says: fetched again", path)
    for _ in range(TRIES):
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            store.get_file(shard.object_key, temporary)
            if sha256_file(temporary) == shard.sha256:
                with on_disk(path):
                    temporary.replace(path)
                _verify(path, shard)
                return
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
    do = "remove the part's .json beside it in the store and rerun the shards stage"
    raise StoreError(must("data shard", f"of SHA-256 {shard.sha256[:12]}...", "damaged", shard.object_key, do))


def _looks(path: Path, sha256: str) -> Verified:
    state = path.stat()
    return Verified(sha256=sha256, size_bytes=state.st_size, mtime_ns=state.st_mtime_ns, inode=state.st_ino)


def _record(path: Path) -> Path:
    return path.parent / _VERIFIED / f"{path.name}.json"


def _prepare(folder: Path, shards: Sequence[DataShard]) -> None:
    """Make the folder, remove what killed copies left, and make sure that what is missing fits."""
    private_folder(folder)
    with on_disk(folder):
        entries = [Path(entry.path) for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]
    for path in entries:
        if path.name.startswith(".part-"):
            _remove(path)
    sizes = {path.name: path.stat().st_size for path in entries if path.exists()}
    missing = sum(shard.size_bytes for shard in shards if sizes.get(shard.name) != shard.size_bytes)
    if free_bytes(folder) < missing:
        # Data shards of an earlier key of this run: of no use to this attempt, and in the store.
        wanted = {shard.name for shard in shards}
        for path in entries:
            if SHARD_NAME.fullmatch(path.name) and path.name not in wanted:
                _remove(path)
    if (free := free_bytes(folder)) < missing:
        do = "remove old files there, or set node.nvme to a bigger disk"
        raise NodeError(must("NVMe's free space", f"at least {show_bytes(missing)}", show_bytes(free), folder, do))


def _remove(path: Path) -> None:
    with on_disk(path):
        path.unlink(missing_ok=True)
