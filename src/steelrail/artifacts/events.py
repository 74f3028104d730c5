"""The event stream: one schema for everything that happens on nodes. The bill is made from it.

A rank is always in one category of time. ``enter`` says which from now on; ``step`` closes a stretch that began at
``start`` and splits it. JSON lines, one file per rank and attempt,
appended and never rewritten; a torn last line is ignored.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

from steelrail.artifacts.files import on_results
from steelrail.artifacts.reading import reading
from steelrail.config.schema import Category

_BLOCK_BYTES = 64 * 1024
_HEAD: dict[str, Any] = {"time": int | float, "kind": str, "attempt": int, "rank": int, "host": str}
# What readers count on, by kind.
_NEEDED = {
    "enter": ("category",),
    "step": ("step", "start", "seconds", "tokens"),
    "durable": ("step", "where"),
    "rolled_back": ("step", "at_most", "why"),
    "end": ("exit_code", "reason"),
}
Kind = Literal[
    "enter",
    "step",
    "save",
    "durable",
    "copied",
    "restore",
    "rolled_back",
    "staged",
    "check",
    "heldout",
    "note",
    "drill",
    "reached",
    "requests",
    "attempt_start",
    "attempt_end",
    "end",
]


@dataclass(frozen=True)
class Event:
    """One event. ``time`` is Unix seconds. ``data`` by kind:

    - enter: ``category``
    - step: ``step``, ``start`` (Unix s), ``seconds`` (category -> s; the rest is productive), ``tokens``,
      and ``skipped`` (true) where the update was left out
    - save: ``step``, ``bytes``, ``stall_seconds``; durable: ``step``, ``where`` (nvme or store), ``bytes``, ``seconds``
    - copied: ``step``, ``epoch``, ``bytes``, ``seconds``: this node's second copy of the files of node ``of``
    - restore: ``step``, ``epoch``, ``where`` (nvme, peer or store: the farthest that any rank read from), ``seconds``,
      ``bytes`` (by nvme, peer and store: what this rank brought of its node's files, each brought by one of its ranks)
    - rolled_back: ``step`` (the bad one), ``at_most`` (the next attempt resumes from no later step), ``first`` (updates
      of the steps from this one to the bad one are left out), ``why``; rank 0 alone, before the attempt ends
    - staged: ``bytes``, ``files``; check: ``ok``, ``detail``
    - heldout: ``step``, ``loss``; note: ``text``
    - drill: ``where``, ``start`` (Unix s), ``seconds`` of a wait put in on purpose, written when it is over
    - reached: ``what`` of the start: process (``since``: when its node's process began, Unix s), collective (the first)
    - requests: ``put``, ``get``, ``list``, ``delete`` that the store answered since the last such event of this rank
    - attempt_start / attempt_end (supervisor only): see ``launch.supervise``
    - end: ``exit_code``, ``reason``
    """

    time: float
    kind: Kind
    attempt: int
    rank: int
    host: str
    data: dict[str, Any] = field(default_factory=dict)


class EventWriter:
    """Appends events to one file, a line each, flushed at once. Safe to share between threads.

    Every call raises ``FullError`` when the file system is full; the line then waits in memory for the next call.
    """

    def __init__(self, path: Path, attempt: int, rank: int, host: str, clock: Callable[[], float]) -> None:
        with on_results(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _drop_torn_end(path)
            self._file: TextIO = path.open("a", encoding="utf-8")
        self._path = path
        self._attempt, self._rank, self._host, self._clock = attempt, rank, host, clock
        self._lock = threading.Lock()

    def write(self, kind: Kind, **data: Any) -> Event:
        """Append one event that happens now."""
        event = Event(self._clock(), kind, self._attempt, self._rank, self._host, data)
        line = json.dumps(
            {
                "time": event.time,
                "kind": kind,
                "attempt": event.attempt,
                "rank": event.rank,
                "host": event.host,
                **data,
            },
            separators=(",", ":"),
        )
        with self._lock, on_results(self._path):
            self._file.write(line + "\n")
            self._file.flush()
        return event

    def enter(self, category: Category) -> None:
        """Say that this rank's time belongs to ``category`` from now on."""
        self.write("enter", category=category)

    def close(self) -> None:
        """Close the file."""
        with on_results(self._path):
            self._file.close()


def _drop_torn_end(path: Path) -> None:
    """Cut a last line that a killed writer left without its end: the next one would be joined to it, both lost."""
    if not path.exists():
        return
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        end = _end_of_last_line(file, size)
    if end < size:
        os.truncate(path, end)


def _end_of_last_line(file: BinaryIO, size: int) -> int:
    """Return where the last whole line ends, 0 when there is none. Reads from the end: the file may be gigabytes."""
    at = size
    while at > 0:
        start = max(0, at - _BLOCK_BYTES)
        file.seek(start)
        found = file.read(at - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        at = start
    return 0


def read_events(path: Path) -> Iterator[Event]:
    """Yield the events of one file in order. A last line without its end (a killed writer) is left out.

    Raises ``InputError`` at any other line that no writer wrote.
    """
    with reading("event file", path):
        file = path.open("rb")
    with file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            yield parse_event(line, f"{path}, line {number}")


def parse_event(line: bytes, where: object) -> Event:
    """Return the event of one whole line. Raises ``InputError`` for what no writer wrote."""
    with reading("event", where):
        fields = dict(json.loads(line))
        head = {name: _of_kind(fields.pop(name), kind) for name, kind in _HEAD.items()}
        for name in _NEEDED.get(head["kind"], ()):
            _ = fields[name]
        return Event(**head, data=fields)


def _of_kind(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(value)
    return value
