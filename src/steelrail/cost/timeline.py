"""Events of one rank to spans of time, each in one category. Pure.

Between the attempt's start and its end nothing is left out and nothing counted twice:

- before the rank's first event: startup (its process starts, its imports run);
- after ``enter``: the category named, until the next ``enter`` or ``end``, but for the steps within it;
- a ``step``: the stretch it names, split as it says; what is left trained the model: productive, or replayed when an
  earlier attempt had made that step already. So does productive time between steps (a held-out loss);
- after a clean ``end``: idle (it waits for its peers); after any other last event: lost (nothing after it was kept);
- between steps that no ``enter("productive")`` came before, where the rank said nothing of itself: unattributed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from steelrail.artifacts.events import Event
from steelrail.artifacts.trainer import CLEAN_EXITS
from steelrail.config.schema import Category

CATEGORIES: tuple[Category, ...] = get_args(Category)


@dataclass(frozen=True)
class Span:
    """A stretch of one rank's time. Unix seconds."""

    start: float
    end: float
    category: Category

    @property
    def seconds(self) -> float:
        """Length."""
        return self.end - self.start


def rank_spans(events: Iterable[Event], start: float, end: float, replayed_to: int, silent: Category) -> list[Span]:
    """Return spans that cover ``start`` to ``end`` (Unix seconds) of one rank in one attempt, in order, without gaps.

    ``replayed_to`` is the last step that earlier attempts had made (-1: none); ``silent`` is the category of a rank
    that reported nothing. Events outside the window are clipped: clocks differ.
    """
    ordered = sorted(events, key=lambda event: event.time)
    if not ordered:
        return clip([Span(start, end, silent)], start, end)
    track = _Track(start, replayed_to)
    for event in ordered:
        track.take(event)
    return clip(track.close(end), start, end)


def last_step(events: Iterable[Event]) -> int:
    """Return the highest step that a rank reports as made, or -1."""
    return max((_step(event) for event in events if event.kind == "step"), default=-1)


class _Track:
    """The spans so far, and the category that is open. Grows by one event at a time."""

    def __init__(self, start: float, replayed_to: int) -> None:
        self.spans: list[Span] = []
        self._to = start
        self._open: Category = "startup"
        self._fixed = start  # no later event may rewrite what lies before: the end of the last step
        self._replayed_to = replayed_to
        self._replays = False
        self._stepping = False
        self._ended = False

    def take(self, event: Event) -> None:
        """Add one event. After the end only background threads speak, and requests are always theirs: no time moves."""
        if self._ended or event.kind == "requests":
            return
        if event.kind == "step":
            self._step(event)
            return
        # While steps are made, others than enter and end come from background threads: they prove no progress.
        if event.kind in ("enter", "end") or not self._stepping:
            self._reach(event.time)
        if event.kind == "enter":
            self._open = category(event.data.get("category"))
            self._stepping = False
        elif event.kind == "end":
            self._ended = True
            self._open = "idle" if event.data.get("exit_code") in CLEAN_EXITS else "lost"

    def close(self, end: float) -> list[Span]:
        """Return all spans, the last one up to ``end``."""
        if not self._ended:
            self._open = "lost"
        self._reach(end)
        return self.spans

    def _reach(self, time: float) -> None:
        if time > self._to:
            again = self._replays and self._open == "productive"
            self.spans.append(Span(self._to, time, "replayed" if again else self._open))
            self._to = time

    def _step(self, event: Event) -> None:
        begin = max(_seconds(event.data.get("start"), event.time), self._fixed)
        self._reach(begin)
        self._cut(begin)
        self._replays = _step(event) <= self._replayed_to
        rest: Category = "replayed" if self._replays else "productive"
        for part in step_spans(begin, event.time, event.data.get("seconds") or {}, rest):
            self.spans.append(part)
            self._to = part.end
        self._fixed = self._to
        self._stepping = True
        if self._open != "productive":
            self._open = "unattributed"

    def _cut(self, begin: float) -> None:
        """Take back what other events said of the stretch that a step now splits."""
        while self.spans and self.spans[-1].start >= begin:
            self.spans.pop()
        if self.spans and self.spans[-1].end > begin:
            self.spans[-1] = Span(self.spans[-1].start, begin, self.spans[-1].category)
        self._to = min(self._to, begin)


def step_spans(begin: float, end: float, seconds: Mapping[str, Any], rest: Category) -> Iterator[Span]:
    """Yield the parts of one step, in the order given, then ``rest``. Parts that claim more than there is share it."""
    length = end - begin
    if length <= 0:
        return
    parts = [(category(name), max(0.0, _seconds(value, 0.0))) for name, value in seconds.items()]
    claimed = sum(part for _, part in parts)
    scale = min(1.0, length / claimed) if claimed > 0 else 1.0
    at = begin
    for name, part in parts:
        if name != "productive" and part > 0:
            yield Span(at, min(end, at + part * scale), name)
            at = min(end, at + part * scale)
    if end > at:
        yield Span(at, end, rest)


def category(name: object) -> Category:
    """Return a category by name; one that does not exist says nothing: unattributed."""
    return next((known for known in CATEGORIES if known == name), "unattributed")


def clip(spans: Iterable[Span], start: float, end: float) -> list[Span]:
    """Return the parts of spans between ``start`` and ``end``."""
    cut = (Span(max(one.start, start), min(one.end, end), one.category) for one in spans)
    return [one for one in cut if one.end > one.start]


def _step(event: Event) -> int:
    number = event.data.get("step", -1)
    return number if isinstance(number, int) else -1


def _seconds(value: object, default: float) -> float:
    return float(value) if isinstance(value, int | float) and value == value else default
