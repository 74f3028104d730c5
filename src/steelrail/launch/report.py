"""Telling whoever waits how training goes: a bar on a terminal, plain lines in a log. An edge."""

from __future__ import annotations

import sys

from steelrail.artifacts.events import Event
from steelrail.artifacts.trainer import RunFolder
from steelrail.clients import clock
from steelrail.config.schema import Run
from steelrail.launch import ledger, traces
from steelrail.launch.attend import Sight
from steelrail.launch.ledger import Entry
from steelrail.log import logger
from steelrail.units import show_seconds

_log = logger(__name__)
_LINE_SECONDS = 15.0
_BAR_CELLS = 24
_WINDOW_STEPS = 20


class Reporter:
    """Remembers what was told, so that each thing is said once and progress only now and then."""

    def __init__(self, run: Run, folder: RunFolder) -> None:
        self._run, self._folder = run, folder
        self._word, self._told_ends = "", {entry.attempt for entry in ledger.read(folder) if entry.ended}
        self._last_line, self._on_terminal = float("-inf"), sys.stderr.isatty()

    def tell(self, sight: Sight) -> None:
        """Say what is new: the job's state, an attempt that ended, where training is."""
        state = f"{sight.word} ({sight.reason})" if sight.reason not in ("", "None") else sight.word
        if state != self._word:
            self._word = state
            _log.info("job is %s", state)
        entries = ledger.read(self._folder)
        for entry in entries:
            if entry.ended and entry.attempt not in self._told_ends:
                self._told_ends.add(entry.attempt)
                _log.info("attempt %d ended: %s: %s", entry.attempt, entry.ending, entry.reason)
        wait = 1.0 if self._on_terminal else _LINE_SECONDS
        if entries and entries[-1].ended is None and clock.monotonic() - self._last_line >= wait:
            self._last_line = clock.monotonic()
            self._tell_progress(entries[-1])

    def _tell_progress(self, entry: Entry) -> None:
        events = traces.newest_steps(self._folder, entry.attempt, _WINDOW_STEPS)
        if not events:
            _log.info("attempt %d on %s: %s", entry.attempt, ", ".join(entry.nodes), self._doing(entry))
            return
        step, steps = int(events[-1].data["step"]), self._run.train.steps
        text = f"step {step} of {steps}, {_speed(events, steps - step)}"
        if not self._on_terminal:
            _log.info("attempt %d: %s", entry.attempt, text)
            return
        full = _BAR_CELLS * step // steps
        sys.stderr.write(f"\r[{'#' * full}{'.' * (_BAR_CELLS - full)}] attempt {entry.attempt}: {text}   ")
        sys.stderr.flush()

    def _doing(self, entry: Entry) -> str:
        beats = traces.heartbeats(self._folder, entry.attempt, self._run.shape.world_size)
        said = sorted({beat.doing for beat in beats.values()})
        return ", ".join(said) or "starting"


def _speed(events: list[Event], left_steps: int) -> str:
    span = events[-1].time - events[0].data["start"]
    if span <= 0:
        return ""
    tokens = sum(int(one.data["tokens"]) for one in events)
    return f"{tokens / span:,.0f} tokens/s, {show_seconds(left_steps * span / len(events))} left"
