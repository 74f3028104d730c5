"""A rank's sign of life and its ears: a heartbeat every second, and signals taken in a thread. Light imports only.

Signals are blocked before torch makes its threads and taken with ``sigwait``, since a Python handler would not run
while the main thread is inside a collective.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from steelrail.artifacts.trainer import EXIT_ERROR, EXIT_FULL, Heartbeat, read_heartbeat
from steelrail.clients import clock
from steelrail.errors import FullError

BEAT_SECONDS = 1.0
# Heartbeats without progress after which the GPU is asked what it waits in.
_STILL_BEATS = 3
# Python frames between a wait and the collective that it belongs to: few, while a loop's own frames lie further out.
_FRAMES = 4
# Fewer than the shortest time after which a silent rank counts as hung.
_UNWRITTEN_BEATS = 3
SAVE_SIGNALS = (signal.SIGUSR2, signal.SIGTERM)


class Pulse:
    """Heartbeat of this rank. Threads may call ``beat``; every call counts as progress."""

    def __init__(self, path: Path, attempt: int, rank: int, host: str) -> None:
        self._path, self._attempt, self._rank, self._host = path, attempt, rank, host
        self._progress, self._step, self._doing = 0, -1, "start"
        self._parent, self._main = os.getppid(), threading.main_thread().ident or 0
        self._still, self._written = 0, -1
        self._lock = threading.Lock()
        self.pending: Callable[[], str] = lambda: ""
        """Names the collective that the GPU has not finished; set once there is one (``train.flight``)."""
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def beat(self, step: int | None, doing: str) -> None:
        """Note progress: the last finished step (none before training) and what is being done."""
        with self._lock:
            self._progress += 1
            self._step = -1 if step is None else step
            self._doing = doing

    @property
    def step(self) -> int | None:
        """The last finished step, none before training."""
        return None if self._step < 0 else self._step

    @property
    def doing(self) -> str:
        """What is being done."""
        return self._doing

    def start(self) -> None:
        """Write the first heartbeat now, and one a second from a thread."""
        self._write()
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def _run(self) -> None:
        unwritten = 0
        while True:
            clock.sleep(BEAT_SECONDS)
            try:
                if self._is_left_over():
                    os._exit(EXIT_ERROR)
                self._write()
                unwritten = 0
            except FullError:
                # Without a sign of life this rank would be ended as one that hangs.
                unwritten += 1
                if unwritten >= _UNWRITTEN_BEATS:
                    os._exit(EXIT_FULL)
            except OSError:
                continue

    def _is_left_over(self) -> bool:
        """Whether this rank has outlived its attempt.

        Its parent (the step's daemon, or a local supervisor) is gone, or a newer attempt's rank writes in its place:
        this node was cut off, and the job went on elsewhere.
        """
        newest = read_heartbeat(self._path)
        return os.getppid() != self._parent or (newest is not None and newest.attempt > self._attempt)

    def _write(self) -> None:
        at, waits = whereabouts(sys._current_frames().get(self._main))
        self._still = self._still + 1 if self._progress == self._written else 0
        self._written = self._progress
        collective = self.pending() if self._still >= _STILL_BEATS else ""
        with self._lock:
            beat = Heartbeat(
                attempt=self._attempt,
                rank=self._rank,
                host=self._host,
                pid=os.getpid(),
                time=clock.now(),
                progress=self._progress,
                step=self.step,
                doing=self._doing,
                at=at,
                waits=waits or bool(collective),
                collective=collective,
            )
        beat.write(self._path)


def whereabouts(frame: FrameType | None) -> tuple[str, bool]:
    """Return the function in which a thread is, and whether it waits for other ranks there.

    A rank that hangs and those that wait for it in a collective have made the same progress; this tells them apart.
    """
    at = "" if frame is None else f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}"
    for _ in range(_FRAMES):
        if frame is None:
            return at, False
        if f"{os.sep}torch{os.sep}distributed{os.sep}" in frame.f_code.co_filename:
            return at, True
        frame = frame.f_back
    return at, False


class Ears:
    """Which signals came. The first of them asks for a save and an end; later ones change nothing."""

    def __init__(self) -> None:
        self._heard: signal.Signals | None = None

    def start(self) -> None:
        """Block the signals in this and every later thread, and wait for them in one of our own."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SAVE_SIGNALS)
        threading.Thread(target=self._listen, name="signals", daemon=True).start()

    def asked(self) -> bool:
        """Return whether this rank was told to save and end."""
        return self._heard is not None

    @property
    def heard(self) -> signal.Signals | None:
        """The first signal that came."""
        return self._heard

    def _listen(self) -> None:
        while True:
            number = signal.sigwait(SAVE_SIGNALS)
            self._heard = self._heard or signal.Signals(number)
