"""The door to whoever watches: a progress bar on a terminal, a plain line now and then in a log."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from steelrail.clients import clock
from steelrail.log import logger
from steelrail.units import show_bytes, show_seconds

LOG_EVERY_SECONDS = 10.0
_log = logger(__name__)


class Meter(Protocol):
    """Takes what was done since the last call. Safe to share between threads."""

    def add(self, size_bytes: float, note: str = "") -> None:
        """Count ``size_bytes`` more; ``note`` says what else is worth reading."""


@contextlib.contextmanager
def progress(title: str, total_bytes: float) -> Iterator[Meter]:
    """Show how far ``title`` is of ``total_bytes`` while the block runs, on standard error."""
    if sys.stderr.isatty():
        with _bar() as bar:
            yield _BarMeter(bar, title, total_bytes)
        return
    meter = LogMeter(title, total_bytes, clock.monotonic())
    yield meter
    meter.close()


def _bar() -> Progress:
    columns = (
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    return Progress(TextColumn("{task.description}"), *columns, console=Console(stderr=True))


class _BarMeter:
    def __init__(self, bar: Progress, title: str, total_bytes: float) -> None:
        self._bar = bar
        self._task = bar.add_task(title, total=total_bytes, note="")

    def add(self, size_bytes: float, note: str = "") -> None:
        self._bar.update(self._task, advance=size_bytes, note=note)


class LogMeter:
    """Writes a line at most every ten seconds, and one at the end."""

    def __init__(self, title: str, total_bytes: float, started: float) -> None:
        self._title, self._total, self._started = title, total_bytes, started
        self._done, self._note, self._last = 0.0, "", started
        self._lock = threading.Lock()

    def add(self, size_bytes: float, note: str = "") -> None:
        """Count ``size_bytes`` more and say so when the last line is old."""
        with self._lock:
            self._done += size_bytes
            self._note = note or self._note
            if clock.monotonic() - self._last >= LOG_EVERY_SECONDS:
                self._last = clock.monotonic()
                _log.info("%s: %s", self._title, self._line())

    def close(self) -> None:
        """Say what was done in all."""
        _log.info("%s: done, %s", self._title, self._line())

    def _line(self) -> str:
        spent = max(clock.monotonic() - self._started, 1e-9)
        share = f"{show_bytes(self._done)} of {show_bytes(self._total)} in {show_seconds(spent)}"
        return ", ".join(filter(None, (share, f"{self._done / spent / 1e6:.2f} MB/s", self._note)))
