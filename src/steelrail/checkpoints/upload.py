"""From NVMe to the store, behind training's back: one thread on the first rank of each node.

Each node sends its own files and then a receipt. The first node's thread waits for all receipts, looks that no newer
attempt has claimed the fence, and writes the manifest: from then on the checkpoint is durable. The store may be away:
sending is repeated, and saves that a newer one overtook are left out, by the same rule on every node (``admit``).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from steelrail.checkpoints import fence, retention
from steelrail.checkpoints.layout import MANIFEST, StepId, receipt_name
from steelrail.checkpoints.manifest import Manifest, digest, encode
from steelrail.checkpoints.place import Emit, Home
from steelrail.clients import clock, parallel, store_transfer
from steelrail.clients.store import MissingObjectError
from steelrail.errors import BusyError, SteelrailError
from steelrail.log import logger
from steelrail.units import show_bytes, show_seconds

log = logger(__name__)
REPEAT_SECONDS = 5.0
RECEIPT_POLL_SECONDS = 0.5
# Of big ones: one begins while the last parts of another are under way.
FILES_AT_ONCE = 2


@dataclass(frozen=True)
class Status:
    """Where a node's uploads stand. ``durable`` is known on the first node; ``fault``: why the store refuses."""

    durable: StepId | None = None
    working: StepId | None = None
    fenced: bool = False
    fault: str | None = None


class OvertakenError(Exception):
    """The save that is being sent is no longer wanted."""


@dataclass
class _Board:
    """What the training side and the thread share, under one lock."""

    status: Status = field(default_factory=Status)
    waiting: list[Manifest] = field(default_factory=list)
    wanted: set[StepId] = field(default_factory=set)
    closing: bool = False


class Uploader:
    """The thread of one node. ``admit`` gives it a save, ``flush`` waits for it, ``close`` ends it."""

    def __init__(self, home: Home, node_rank: int, emit: Emit) -> None:
        self._home, self._node_rank, self._emit = home, node_rank, emit
        self._board, self._turn = _Board(), threading.Condition()
        self._thread = threading.Thread(target=self._run, name="checkpoint-upload", daemon=True)
        self._thread.start()

    @property
    def status(self) -> Status:
        """Where uploads stand now."""
        with self._turn:
            return self._board.status

    @property
    def wanted(self) -> set[StepId]:
        """Saves whose files on NVMe are still needed."""
        with self._turn:
            return set(self._board.wanted)

    def admit(self, manifest: Manifest, leader_working: StepId | None) -> None:
        """Queue a save. Of earlier ones, only that which the first node is at (all nodes are told) is still sent."""
        with self._turn:
            keep = {manifest.id} if leader_working is None else {manifest.id, leader_working}
            self._board.waiting = [one for one in self._board.waiting if one.id in keep] + [manifest]
            self._board.wanted = keep & ({one.id for one in self._board.waiting} | {self._working})
            self._turn.notify_all()

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until nothing is queued or being sent; returns whether that came about (never when fenced off)."""
        with self._turn:
            return self._turn.wait_for(self._idle_or_fenced, timeout_seconds) and not self._board.status.fenced

    def close(self) -> None:
        """Ask the thread to end; what it has not sent stays on NVMe for the next attempt."""
        with self._turn:
            self._board.closing = True
            self._turn.notify_all()
        self._thread.join(timeout=1.0)

    @property
    def _working(self) -> StepId | None:
        return self._board.status.working

    def _idle_or_fenced(self) -> bool:
        return self._board.status.fenced or (not self._board.waiting and self._working is None)

    def _run(self) -> None:
        while (manifest := self._next()) is not None:
            self._send_until_done(manifest)
            with self._turn:
                self._board.wanted.discard(manifest.id)
                self._board.status = replace(self._board.status, working=None)
                self._turn.notify_all()

    def _next(self) -> Manifest | None:
        with self._turn:
            self._turn.wait_for(lambda: self._board.closing or (self._board.waiting and not self._board.status.fenced))
            if self._board.closing:
                return None
            manifest = self._board.waiting.pop(0)
            self._board.status = replace(self._board.status, working=manifest.id)
            return manifest

    def _send_until_done(self, manifest: Manifest) -> None:
        done: set[str] = set()
        began = clock.monotonic()
        while True:
            try:
                self._send(manifest, done)
                if self._node_rank == 0:
                    self._commit(manifest, clock.monotonic() - began)
                return
            except OvertakenError:
                log.warning("checkpoint of step %d is not uploaded: a newer one is", manifest.step)
                return
            except BusyError as error:
                self._report(replace(self.status, fenced=True, fault=f"{error}"))
                log.error("checkpoint of step %d is not committed: %s", manifest.step, error)
                return
            except SteelrailError as error:
                self._complain(manifest, error)
            except Exception as error:
                log.exception("checkpoint of step %d: upload failed", manifest.step)
                self._complain(manifest, error)
            with self._turn:
                self._turn.wait_for(lambda: not self._is_wanted(manifest.id), REPEAT_SECONDS)

    def _complain(self, manifest: Manifest, error: Exception) -> None:
        self._report(replace(self.status, fault=f"{error}"))
        self._emit("note", text=f"upload of step {manifest.step} failed, will be repeated: {error}")
        log.warning("upload of step %d failed, repeated in %.0f s: %s", manifest.step, REPEAT_SECONDS, error)

    def _report(self, status: Status) -> None:
        with self._turn:
            self._board.status = status
            self._turn.notify_all()

    def _is_wanted(self, which: StepId) -> bool:
        return which in self._board.wanted and not self._board.closing

    def _require_wanted(self, which: StepId) -> None:
        with self._turn:
            if not self._is_wanted(which):
                raise OvertakenError

    def _send(self, manifest: Manifest, done: set[str]) -> None:
        """Send this node's files, each once, and then its receipt."""
        files = [file for file in manifest.files_of(self._node_rank) if file.name not in done]
        at_once = FILES_AT_ONCE if sum(file.size_bytes > store_transfer.PART_BYTES for file in files) > 1 else 1

        def send(name: str) -> None:
            self._require_wanted(manifest.id)
            path, key = self._home.folder(manifest.id) / name, self._home.object_key(manifest.id, name)
            self._home.store.put_file(key, path, store_transfer.THREADS // at_once)
            done.add(name)

        parallel.in_parallel(send, [file.name for file in files], at_once)
        receipt = json.dumps({"manifest": digest(manifest)}).encode()
        self._home.store.put(self._home.object_key(manifest.id, receipt_name(self._node_rank)), receipt)

    def _commit(self, manifest: Manifest, seconds: float) -> None:
        home = self._home
        for node_rank in range(manifest.num_nodes):
            self._await_receipt(manifest, node_rank)
        fence.require_newest(home.store, home.run, home.key, home.epoch)
        key, data = home.object_key(manifest.id, MANIFEST), encode(manifest)
        if not home.store.put_if_absent(key, data) and home.store.get(key) != data:
            raise BusyError(f"manifest {key} was written by another attempt")
        fence.record_commit(home.store, home.run, home.key, home.epoch, manifest.id)
        self._report(replace(self.status, durable=manifest.id, fault=None))
        self._emit("durable", step=manifest.step, where="store", bytes=manifest.size_bytes, seconds=seconds)
        log.info(
            "checkpoint of step %d is durable: %s in %s",
            manifest.step,
            show_bytes(manifest.size_bytes),
            show_seconds(seconds),
        )
        retention.sweep_store_or_log(home, manifest.id)

    def _await_receipt(self, manifest: Manifest, node_rank: int) -> None:
        """Wait for a node's receipt, as long as the save is wanted."""
        key, expected = self._home.object_key(manifest.id, receipt_name(node_rank)), digest(manifest)
        while not _receipt_says(self._home.store.get, key, expected):
            with self._turn:
                self._turn.wait_for(lambda: not self._is_wanted(manifest.id), RECEIPT_POLL_SECONDS)
            self._require_wanted(manifest.id)


def _receipt_says(get: Callable[[str], bytes], key: str, expected: str) -> bool:
    try:
        return bool(json.loads(get(key)).get("manifest") == expected)
    except (MissingObjectError, ValueError, AttributeError):
        return False
