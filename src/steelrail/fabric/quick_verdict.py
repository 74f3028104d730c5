"""The verdict of the check inside an attempt, from what all ranks said: the same on every rank. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_high

from steelrail.artifacts.fabric import FabricReport
from steelrail.config.schema import Run
from steelrail.fabric.pairs import usual_gb_per_s
from steelrail.fabric.receipt import uncovered
from steelrail.fabric.sizes import algbw_gb_per_s

# On the CPU ranks share cores: only a link far below the threshold stops an attempt.
_CPU_PATIENCE = 0.2
_SAID = 4


@dataclass(frozen=True)
class QuickFact:
    """What one rank found. ``receive_seconds``: a message from the node before it in the ring; none off the ring."""

    rank: int
    host: str
    local_rank: int
    model: str
    uuid: str
    product: str
    receive_seconds: float | None
    gather_seconds: float
    seconds: float


@dataclass(frozen=True)
class Link:
    """One link of the ring, from ``source`` to ``target`` (hosts); ``usual_gb_per_s`` is what it is held against."""

    source: str
    target: str
    rail: int
    gb_per_s: float
    usual_gb_per_s: float

    @property
    def share(self) -> float:
        """Speed over what is usual."""
        return self.gb_per_s / self.usual_gb_per_s if self.usual_gb_per_s > 0 else 1.0


@dataclass(frozen=True)
class QuickResult:
    """Whether an attempt may start, why not, and what was seen. Times are the slowest rank's.

    ``culprits`` are hosts; ``uncovered`` is what the fabric stage's receipt does not speak of, which is no fault.
    """

    ok: bool
    detail: str
    seconds: float
    worst_link: str | None
    worst_gb_per_s: float | None
    gather_seconds: float
    culprits: tuple[str, ...]
    uncovered: tuple[str, ...]


def quick_verdict(facts: Sequence[QuickFact], size_bytes: int, run: Run, baseline: FabricReport | None) -> QuickResult:
    """Return the verdict. ``facts`` are in rank order; ``size_bytes`` is the ring's message."""
    links = ring_links(facts, size_bytes, baseline)
    ratio = run.fabric.slow_ratio * (1.0 if run.shape.device == "cuda" else _CPU_PATIENCE)
    slow = [link for link in links if link.share < ratio]
    wrong = wrong_products(facts)
    worst = min(links, key=lambda link: link.share, default=None)
    gather_seconds = max(fact.gather_seconds for fact in facts)
    return QuickResult(
        ok=not slow and not wrong,
        detail=_detail(wrong, slow, worst, gather_seconds, len(facts)),
        seconds=max(fact.seconds for fact in facts),
        worst_link=f"{worst.source}-{worst.target}" if worst else None,
        worst_gb_per_s=worst.gb_per_s if worst else None,
        gather_seconds=gather_seconds,
        culprits=tuple(dict.fromkeys([*(fact.host for fact in wrong), *_slow_hosts(slow)])),
        uncovered=uncovered(baseline, [(fact.host, fact.uuid) for fact in facts]) if baseline else (),
    )


def ring_links(facts: Sequence[QuickFact], size_bytes: int, baseline: FabricReport | None) -> tuple[Link, ...]:
    """Return the links of the ring, one a rail.

    Each is held against the baseline's same pair, else its usual pair, else the middle of the links seen now.
    """
    hosts = list(dict.fromkeys(fact.host for fact in facts))
    before = {host: hosts[index - 1] for index, host in enumerate(hosts)}
    seen = [(fact, algbw_gb_per_s(size_bytes, fact.receive_seconds)) for fact in facts if fact.receive_seconds]
    middle = median_high(rate for _, rate in seen) if seen else 0.0
    return tuple(
        Link(before[one.host], one.host, one.local_rank, rate, _usual(before[one.host], one, middle, baseline))
        for one, rate in seen
    )


def wrong_products(facts: Sequence[QuickFact]) -> tuple[QuickFact, ...]:
    """Return the ranks whose matrix product differs from most of their device model; all of them without a majority."""
    wrong: list[QuickFact] = []
    for model in dict.fromkeys(fact.model for fact in facts):
        group = [fact for fact in facts if fact.model == model]
        usual, count = Counter(fact.product for fact in group).most_common(1)[0]
        majority = count * 2 > len(group)
        wrong += [fact for fact in group if fact.product != usual or not majority]
    return tuple(wrong)


def _usual(source: str, one: QuickFact, middle: float, baseline: FabricReport | None) -> float:
    between = [pair for pair in baseline.pairs if "/" not in pair.first] if baseline else []
    if not between:
        return middle
    ends = {source, one.host}
    same = [pair for pair in between if {pair.first, pair.second} == ends and pair.rail == one.local_rank]
    return same[0].gb_per_s if same else usual_gb_per_s(between)


def _slow_hosts(slow: Sequence[Link]) -> tuple[str, ...]:
    """Return the hosts with a slow link on both sides; of a lone slow link, its target."""
    both = [link.target for link in slow if any(other.source == link.target for other in slow)]
    return tuple(both) or tuple(link.target for link in slow)


def _detail(
    wrong: Sequence[QuickFact], slow: Sequence[Link], worst: Link | None, gather_seconds: float, num_ranks: int
) -> str:
    said = [f"{fact.host}/gpu{fact.local_rank} multiplies to other bits than most" for fact in wrong[:_SAID]]
    said += [f"{_link_text(link)}, far below the usual {link.usual_gb_per_s:.3f}" for link in slow[:_SAID]]
    if not said and worst:
        said = [f"slowest link {_link_text(worst)} (usual {worst.usual_gb_per_s:.3f})"]
    return "; ".join([*said, f"all-gather of a block over {num_ranks} ranks {gather_seconds * 1e3:.2f} ms"])


def _link_text(link: Link) -> str:
    return f"{link.source}-{link.target} {link.gb_per_s:.3f} GB/s on rail {link.rail}"
