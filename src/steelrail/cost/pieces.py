"""Segments cut into pieces: who (attempt, rank, host), in which category, how long, for what part of the segment. Pure.

A node of a segment is a share of what is paid; its ranks divide that share. So the parts of a segment's pieces sum to
its length, whatever its ranks did, and a spare node that no rank uses is paid for as idle.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from steelrail.artifacts.events import Event
from steelrail.artifacts.train import Attempt, Ending
from steelrail.config.schema import Category
from steelrail.cost.segments import Segment, Window, windows
from steelrail.cost.timeline import Span, last_step, rank_spans

NO_STEP = -1


@dataclass(frozen=True)
class Reports:
    """What the ranks of one attempt reported: the host each named, and its events, read one rank at a time
    (those of a large run do not fit into memory together)."""

    hosts: Mapping[int, str]
    read: Callable[[int], Sequence[Event]]

    @property
    def world_size(self) -> int:
        """Ranks, those without a word before the last that spoke included."""
        return max(self.hosts, default=-1) + 1


@dataclass(frozen=True)
class Piece:
    """Time of one rank (or of a node without one) in one category. ``part`` is its share of the segment's seconds."""

    attempt: int | None
    rank: int | None
    host: str
    category: Category
    seconds: float
    part: float


@dataclass(frozen=True)
class Band:
    """A span on one node, for the picture of attempts over nodes: what its first rank did."""

    attempt: int | None
    host: str
    span: Span


@dataclass
class Cut:
    """What cutting a segment gives; filled rank by rank."""

    segment: Segment
    pieces: list[Piece] = field(default_factory=list)
    bands: list[Band] = field(default_factory=list)


def cut_job(segment: Segment, category: Category) -> Cut:
    """Return a segment of a stage that does one thing: all of it that category, or lost when the job failed."""
    actual: Category = category if segment.state == "COMPLETED" else "lost"
    return cut_whole(segment, actual)


def cut_whole(segment: Segment, category: Category) -> Cut:
    """Return a segment with every node in one category from start to end."""
    cut = Cut(segment)
    for host in segment.nodes or ("",):
        _add_node(cut, None, host, [Span(segment.start, segment.end, category)])
    return cut


def cut_training(
    paid: Sequence[Segment], attempts: Sequence[Attempt], reports_of: Callable[[Attempt], Reports], band_seconds: float
) -> list[Cut]:
    """Return the cut of every training segment in ``paid``; bands are no finer than ``band_seconds``."""
    ordered = sorted(attempts, key=lambda one: one.attempt)
    cuts = [Cut(one) for one in paid]
    inside = [windows(one, paid, ordered) for one in paid]
    made = NO_STEP
    for attempt in ordered:
        places = [
            (cut, window) for cut, own in zip(cuts, inside, strict=True) for window in own if window.attempt is attempt
        ]
        made = max(made, _cut_attempt(attempt, places, reports_of(attempt), made, band_seconds))
    for cut, own in zip(cuts, inside, strict=True):
        _cut_between(cut, own)
    return cuts


def _cut_attempt(
    attempt: Attempt, places: Sequence[tuple[Cut, Window]], reports: Reports, replayed_to: int, band_seconds: float
) -> int:
    """Add the ranks of an attempt to the segments it reached; return the highest step it made."""
    made = NO_STEP if attempt.last_step is None else attempt.last_step
    for host, ranks in ranks_on(attempt, reports).items():
        for number, rank in enumerate(ranks):
            events = reports.read(rank) if rank in reports.hosts else ()
            made = max(made, last_step(events))
            for cut, window in places:
                spans = rank_spans(events, window.start, window.end, replayed_to, silent(attempt))
                _add_rank(cut, attempt.attempt, rank, host, spans, len(ranks))
                if number == 0 and host in cut.segment.nodes:
                    cut.bands += [Band(attempt.attempt, host, span) for span in coarse(spans, band_seconds)]
        if not ranks:
            for cut, window in places:
                _add_node(cut, attempt.attempt, host, [Span(window.start, window.end, silent(attempt))])
    return made


def ranks_on(attempt: Attempt, reports: Reports) -> dict[str, list[int]]:
    """Return the ranks of each node of an attempt: where they said they were, or else in order over the nodes."""
    placed: dict[str, list[int]] = {host: [] for host in attempt.nodes}
    short = {host.split(".")[0]: host for host in attempt.nodes}
    per_node = max(1, math.ceil(reports.world_size / max(1, len(attempt.nodes))))
    for rank in range(reports.world_size if attempt.nodes else 0):
        said = short.get(reports.hosts.get(rank, "").split(".")[0])
        placed[said or attempt.nodes[min(rank // per_node, len(attempt.nodes) - 1)]].append(rank)
    return placed


def silent(attempt: Attempt) -> Category:
    """Return what the time of a rank without events was: lost where the attempt came to nothing, else not known."""
    return "lost" if attempt.last_step is None and attempt.ending is not Ending.DONE else "unattributed"


def _cut_between(cut: Cut, inside: Sequence[Window]) -> None:
    """Add what lies between attempts, and the nodes that an attempt left unused."""
    if not inside:
        for host in cut.segment.nodes or ("",):
            _add_node(cut, None, host, [Span(cut.segment.start, cut.segment.end, "lost")])
        return
    for host in cut.segment.nodes:
        ever = any(host in window.attempt.nodes for window in inside)
        at = cut.segment.start
        for window in inside:
            _add_node(cut, None, host, [Span(at, window.start, "startup" if ever else "idle")])
            if host not in window.attempt.nodes:
                _add_node(cut, window.attempt.attempt, host, [Span(window.start, window.end, "idle")])
            at = window.end
        _add_node(cut, None, host, [Span(at, cut.segment.end, "idle")])


def _add_rank(cut: Cut, attempt: int, rank: int, host: str, spans: Iterable[Span], ranks: int) -> None:
    """Add a rank's spans, summed by category; a node that the segment no longer holds costs nothing."""
    if host not in cut.segment.nodes:
        return
    sums: defaultdict[Category, float] = defaultdict(float)
    for span in spans:
        sums[span.category] += span.seconds
    share = 1.0 / len(cut.segment.nodes) / ranks
    cut.pieces += [Piece(attempt, rank, host, name, seconds, seconds * share) for name, seconds in sums.items()]


def _add_node(cut: Cut, attempt: int | None, host: str, spans: Iterable[Span]) -> None:
    """Add spans of a whole node; a node that the segment does not hold costs nothing."""
    nodes = cut.segment.nodes or ("",)
    real = [span for span in spans if span.seconds > 0 and host in nodes]
    cut.pieces += [Piece(attempt, None, host, one.category, one.seconds, one.seconds / len(nodes)) for one in real]
    cut.bands += [Band(attempt, host, one) for one in real]


def coarse(spans: Iterable[Span], seconds: float) -> list[Span]:
    """Return the same time in windows of at least ``seconds``, each category in one piece in them. For pictures.

    No category loses time to another. Every other window lists its categories backwards, so that pieces join.
    """
    found: list[Span] = []
    pending: list[Span] = []
    backwards = False
    for span in spans:
        pending.append(span)
        if span.end - pending[0].start >= seconds:
            _gather(found, pending, backwards)
            pending, backwards = [], not backwards
    if pending:
        _gather(found, pending, backwards)
    return found


def _gather(found: list[Span], window: Sequence[Span], backwards: bool) -> None:
    sums: defaultdict[Category, float] = defaultdict(float)
    for span in window:
        sums[span.category] += span.seconds
    at = window[0].start
    for name in sorted(sums, reverse=backwards):
        joins = bool(found) and found[-1].category == name and at - found[-1].end < 1e-6
        start = found.pop().start if joins else at
        at += sums[name]
        found.append(Span(start, at, name))
