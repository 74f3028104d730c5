"""Which links are slow, and whether a node or a link is to blame. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median, median_high

from steelrail.artifacts.fabric import Finding, PairMeasurement

# On the CPU an exchange is as fast as the cores are free: seen to vary fourfold on sound links.
_CPU_PATIENCE = 0.5


@dataclass(frozen=True)
class End:
    """One end of a pair: a node's rail (``label`` is its host), or a GPU of a node (``host/gpu0``)."""

    label: str
    rail: int

    @property
    def is_gpu(self) -> bool:
        """Whether the pair is inside one node."""
        return "/" in self.label


@dataclass(frozen=True)
class PairVerdict:
    """Findings on links, and the hosts to leave out to be rid of slow or corrupting links between nodes."""

    findings: tuple[Finding, ...]
    exclude: tuple[str, ...]


def judge_pairs(pairs: Iterable[PairMeasurement], slow_ratio: float) -> PairVerdict:
    """Return findings on slow and corrupting pairs; pairs inside nodes and between nodes are judged apart.

    A pair is slow below ``slow_ratio`` x the usual speed (``usual_gb_per_s``). An end is to blame when it has two pairs
    or more and most of them are slow; what is slow after that is the link's fault. To be rid of a bad link its second
    host is left out.
    """
    findings: list[Finding] = []
    exclude: list[str] = []
    for group in _kinds(pairs):
        usual = usual_gb_per_s(group)
        slow = [pair for pair in group if pair.gb_per_s < slow_ratio * usual]
        ends, links = blame(group, slow)
        findings += [*_node_findings(ends, group, usual), *(_link_finding(pair, usual) for pair in links)]
        broken = [pair for pair in group if not pair.intact]
        findings += [_broken_finding(pair) for pair in broken]
        exclude += [pair.second.split("/")[0] for pair in (*links, *broken)]
    return PairVerdict(tuple(findings), tuple(dict.fromkeys(exclude)))


def usual_gb_per_s(pairs: Iterable[PairMeasurement]) -> float:
    """Return the speed that a sound pair has here: the median over ends of the (upper) median of each end's pairs.

    Not the median of pairs: one slow node among four makes half of all pairs slow, among three two thirds.
    """
    rates: dict[End, list[float]] = defaultdict(list)
    for pair in pairs:
        for end in ends_of(pair):
            rates[end].append(pair.gb_per_s)
    return median(median_high(own) for own in rates.values()) if rates else 0.0


def link_ratio(slow_ratio: float, device: str) -> float:
    """Return the share of the usual speed below which a link is slow: half as strict where ranks share cores."""
    return slow_ratio if device == "cuda" else slow_ratio * _CPU_PATIENCE


def suspects(pairs: Iterable[PairMeasurement], slow_ratio: float) -> tuple[PairMeasurement, ...]:
    """Return the pairs that look slow, to be measured again alone before anyone is blamed."""
    return tuple(
        pair for group in _kinds(pairs) for pair in group if pair.gb_per_s < slow_ratio * usual_gb_per_s(group)
    )


def better(first: PairMeasurement, again: PairMeasurement) -> PairMeasurement:
    """Return the faster of two measurements of one pair; bytes that were ever damaged stay damaged."""
    best = max(first, again, key=lambda pair: pair.gb_per_s)
    return best.model_copy(update={"intact": first.intact and again.intact})


def blame(pairs: list[PairMeasurement], slow: list[PairMeasurement]) -> tuple[list[End], list[PairMeasurement]]:
    """Return the ends to blame, worst first, and the slow pairs that none of them explains."""
    ends: list[End] = []
    left, all_left = list(slow), list(pairs)
    while left:
        worst, share = _worst_end(all_left, left)
        if share <= 0.5:
            break
        ends.append(worst)
        left = [pair for pair in left if worst not in ends_of(pair)]
        all_left = [pair for pair in all_left if worst not in ends_of(pair)]
    return ends, left


def ends_of(pair: PairMeasurement) -> tuple[End, End]:
    """Return both ends of a pair."""
    return End(pair.first, pair.rail), End(pair.second, pair.rail)


def _worst_end(pairs: list[PairMeasurement], slow: list[PairMeasurement]) -> tuple[End, float]:
    """Return the end with the largest share of slow pairs (ties: the slower end); an end with one pair has no share."""
    count, bad, rate = defaultdict[End, int](int), defaultdict[End, int](int), defaultdict[End, float](float)
    for pair in pairs:
        for end in ends_of(pair):
            count[end] += 1
            bad[end] += pair in slow
            rate[end] += pair.gb_per_s
    share = {end: bad[end] / count[end] if count[end] > 1 else 0.0 for end in count}
    worst = max(share, key=lambda end: (share[end], -rate[end] / count[end]))
    return worst, share[worst]


def _kinds(pairs: Iterable[PairMeasurement]) -> list[list[PairMeasurement]]:
    between = [pair for pair in pairs if "/" not in pair.first]
    inside = [pair for pair in pairs if "/" in pair.first]
    return [group for group in (between, inside) if group]


def _node_findings(ends: list[End], pairs: list[PairMeasurement], usual: float) -> list[Finding]:
    """Blame the host when all its rails are slow, else the GPU of the rail; an end inside a node names its GPU."""
    rails = {pair.rail for pair in pairs}
    by_label: dict[str, list[End]] = defaultdict(list)
    for end in ends:
        by_label[end.label].append(end)
    findings = []
    for label, own in by_label.items():
        whole = own[0].is_gpu or len(own) == len(rails)
        culprits = [label] if whole else [f"{label}/gpu{end.rail}" for end in own]
        findings += [_end_finding(culprit, own, pairs, usual) for culprit in culprits]
    return findings


def _end_finding(culprit: str, own: list[End], pairs: list[PairMeasurement], usual: float) -> Finding:
    rates = [pair.gb_per_s for pair in pairs if any(end in ends_of(pair) for end in own)]
    what = f"most of its links are slow: {median(rates):.3f} GB/s in the middle, {usual:.3f} is usual here"
    return Finding(severity="unfit", culprit=culprit, what=what)


def _link_finding(pair: PairMeasurement, usual: float) -> Finding:
    what = f"the link carries {pair.gb_per_s:.3f} GB/s (rail {pair.rail}), {usual:.3f} is usual here"
    return Finding(severity="unfit", culprit=f"{pair.first}-{pair.second}", what=what)


def _broken_finding(pair: PairMeasurement) -> Finding:
    what = f"bytes arrived changed (rail {pair.rail}, {pair.size_bytes} bytes)"
    return Finding(severity="unfit", culprit=f"{pair.first}-{pair.second}", what=what)
