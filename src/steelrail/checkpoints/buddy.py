"""A second copy of each node's part of a checkpoint, on the NVMe of the node after it: one thread a node, which pulls.

It begins when a save is on every node's NVMe, speaks to one peer over TCP and to no process group, and gives up in
time: a peer that is away costs that copy and nothing else. The copy lies in the save's own folder and goes with it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from steelrail.artifacts.files import sync_folder
from steelrail.checkpoints.layout import StepId
from steelrail.checkpoints.manifest import CheckpointFile, Manifest
from steelrail.checkpoints.peers import Peers
from steelrail.checkpoints.place import Emit, Home, no_beat
from steelrail.clients import clock, parallel
from steelrail.clients.disk import free_bytes, on_disk, private_folder
from steelrail.clients.peers import PeerError
from steelrail.errors import CheckpointError, NodeError, SteelrailError, must
from steelrail.log import logger
from steelrail.units import show_bytes

log = logger(__name__)
THREADS = 4
TRIES = 3
PAUSE_SECONDS = 5.0
REMEMBERED = 8


@dataclass
class _Board:
    """What the saving side and the thread share, under one lock. ``held``: newest last."""

    waiting: Manifest | None = None
    working: StepId | None = None
    held: list[StepId] = field(default_factory=list)
    closing: bool = False


@dataclass(frozen=True)
class Copies:
    """Saves of which a node holds its ward's files beside its own, newest few; and those that it copies or is to."""

    held: frozenset[StepId]
    coming: frozenset[StepId]


class Copier:
    """The thread of one node. ``admit`` gives it a save, ``copies`` says which are copied, ``close`` ends it."""

    def __init__(self, home: Home, peers: Peers, emit: Emit) -> None:
        # A copy is no sign of life: it goes on while the step loop hangs.
        self._home, self._peers, self._emit = replace(home, beat=no_beat), peers, emit
        self._board, self._turn = _Board(), threading.Condition()
        self._thread = threading.Thread(target=self._run, name="checkpoint-buddy", daemon=True)
        self._thread.start()

    @property
    def copies(self) -> Copies:
        """What it has copied, and what it still does."""
        with self._turn:
            waiting = {self._board.waiting.id} if self._board.waiting else set()
            working = {self._board.working} if self._board.working else set()
            return Copies(frozenset(self._board.held), frozenset(waiting | working))

    def admit(self, manifest: Manifest) -> None:
        """Have a save copied once the one at hand is over; one that still waits is left out for it."""
        with self._turn:
            self._board.waiting = manifest
            self._turn.notify_all()

    def close(self) -> None:
        """Ask the thread to end."""
        with self._turn:
            self._board.closing = True
            self._turn.notify_all()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        while (manifest := self._next()) is not None:
            try:
                self._copy(manifest)
            except SteelrailError as error:
                self._complain(manifest, f"{error}")
            except Exception as error:
                log.exception("copy of step %d failed", manifest.step)
                self._complain(manifest, f"{type(error).__name__}: {error}")
            with self._turn:
                self._board.working = None

    def _next(self) -> Manifest | None:
        with self._turn:
            self._turn.wait_for(lambda: self._board.closing or self._board.waiting)
            if self._board.closing:
                return None
            manifest, self._board.waiting = self._board.waiting, None
            self._board.working = manifest.id if manifest else None
            return manifest

    def _complain(self, manifest: Manifest, fault: str) -> None:
        if self._board.closing:
            return
        ward = self._peers.nodes[self._peers.ward].host
        said = f"no second copy of step {manifest.step} of {ward}; training goes on: {fault}"
        log.warning("%s", said)
        self._emit("note", text=said)

    def _copy(self, manifest: Manifest) -> None:
        began, lacking = clock.monotonic(), self._lacking(manifest)
        size_bytes = sum(file.size_bytes for file in lacking)
        self._require_room(manifest, size_bytes)
        private_folder(self._home.folder(manifest.id))
        parallel.in_parallel(lambda file: self._pull(manifest, file), lacking, THREADS, "checkpoint-buddy")
        with on_disk(self._home.local):
            sync_folder(self._home.folder(manifest.id))
        ward, seconds = self._peers.nodes[self._peers.ward].host, clock.monotonic() - began
        self._emit("copied", step=manifest.step, epoch=manifest.epoch, bytes=size_bytes, seconds=seconds, of=ward)
        with self._turn:
            self._board.held = [*self._board.held, manifest.id][-REMEMBERED:]

    def _lacking(self, manifest: Manifest) -> list[CheckpointFile]:
        """Return the ward's files that are not here. What is here is proved when it is read, not now."""
        folder = self._home.folder(manifest.id)
        there = {path.name: path.stat().st_size for path in folder.iterdir()} if folder.is_dir() else {}
        return [file for file in manifest.files_of(self._peers.ward) if there.get(file.name) != file.size_bytes]

    def _require_room(self, manifest: Manifest, size_bytes: int) -> None:
        """A copy must leave room for this node's own next save."""
        own = sum(file.size_bytes for file in manifest.files_of(self._peers.node_rank))
        free = free_bytes(self._home.local)
        if free < size_bytes + own:
            be, do = f"at least {show_bytes(size_bytes + own)}", "free space there, or set checkpoints.buddy: false"
            raise NodeError(must("NVMe's free space", be, show_bytes(free), self._home.local, do))

    def _pull(self, manifest: Manifest, file: CheckpointFile) -> None:
        """Have one file from the ward, asked ``TRIES`` times: it may be away, or bytes change on the way."""
        do = "see that node's NVMe; a save that is removed before it is copied needs a longer interval"
        fault: SteelrailError = CheckpointError(must("file", "whole on its node", "not", file.name, do))
        for tried in range(TRIES):
            if tried and self._is_closing_after(PAUSE_SECONDS):
                break
            try:
                if self._peers.fetch(self._peers.ward, self._home, manifest.id, file):
                    return
            except PeerError as error:
                fault = error
        raise fault

    def _is_closing_after(self, seconds: float) -> bool:
        with self._turn:
            return self._turn.wait_for(lambda: self._board.closing, seconds)


def newest_held(said: Collection[Copies]) -> StepId | None:
    """Return the newest save of which every node has copied its ward's files. Pure."""
    return max(frozenset.intersection(*(one.held for one in said)), default=None) if said else None


def soon_held(said: Collection[Copies]) -> frozenset[StepId]:
    """Return the saves that every node has copied or is copying: by now all may have said that they did. Pure."""
    return frozenset.intersection(*(one.held | one.coming for one in said)) if said else frozenset()
