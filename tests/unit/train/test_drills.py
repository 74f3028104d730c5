"""Drills as they are carried out; in a whole loop: ``test_loop``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from steelrail.artifacts.events import Event, EventWriter, read_events
from steelrail.config.schema import Drill
from steelrail.train.drills import DrillError, perform


class StoppedClock:
    """Time that moves only while somebody sleeps."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def drill(kind: Any, **settings: Any) -> Drill:
    return Drill(kind=kind, **settings)


def told(path: Path, drills: Sequence[Drill]) -> list[Event]:
    """The events of carrying out the drills."""
    clock = StoppedClock()
    events = EventWriter(path / "events.jsonl", attempt=2, rank=3, host="n1", clock=clock.now)
    try:
        perform(tuple(drills), clock.now, clock.sleep, events)
    finally:
        events.close()
    return list(read_events(path / "events.jsonl"))


def test_every_wait_tells_at_its_end_where_it_was_when_it_began_and_how_long_it_took(tmp_path: Path) -> None:
    waits = [drill("wait", where="restore", seconds=6.0), drill("wait", where="idle", seconds=1.5)]
    assert [
        Event(106.0, "drill", 2, 3, "n1", {"where": "restore", "start": 100.0, "seconds": 6.0}),
        Event(107.5, "drill", 2, 3, "n1", {"where": "idle", "start": 106.0, "seconds": 1.5}),
    ] == told(tmp_path, waits)


def test_a_drill_that_never_waits_tells_nothing(tmp_path: Path) -> None:
    assert [] == told(tmp_path, [drill("nan", where="productive", at_step=1)])
    with pytest.raises(DrillError, match="raised on purpose in staging"):
        told(tmp_path, [drill("raise", where="staging")])
    assert [] == list(read_events(tmp_path / "events.jsonl"))
