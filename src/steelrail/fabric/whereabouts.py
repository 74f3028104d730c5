"""Where the ranks of a try were: what a reader is told when they hang or leave nothing. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal, get_args

from steelrail.artifacts.files import Artifact

# In the order in which every rank goes through them; only rank 0 writes the report.
Part = Literal["start", "imports", "meet", "connect", "health", "pairs", "collectives", "leave", "report", "done"]
PARTS: tuple[Part, ...] = get_args(Part)
_SHOWN_HOSTS = 4


class Whereabouts(Artifact):
    """``doing-rank-N.json``: the part in which a rank is, since when (Unix seconds)."""

    CALLED: ClassVar[str] = "whereabouts of a rank of the fabric job"
    COMMAND: ClassVar[str] = "steelrail fabric"

    rank: int
    host: str
    doing: Part
    since: float


def where_they_were(found: Iterable[Whereabouts], world_size: int) -> str:
    """Return the ranks by the furthest part they reached, furthest first, with the hosts of those that fell behind.

    ``ranks 0-6 were in pairs; rank 7 on node4 did not get there: health``; a rank that left no file never started.
    """
    by_part: dict[Part, list[Whereabouts]] = {part: [] for part in reversed(PARTS)}
    for one in sorted(found, key=lambda one: one.rank):
        by_part[one.doing].append(one)
    groups = [(part, ranks) for part, ranks in by_part.items() if ranks]
    said = [_say(part, ranks, behind=number > 0) for number, (part, ranks) in enumerate(groups)]
    absent = sorted(set(range(world_size)) - {one.rank for _, ranks in groups for one in ranks})
    return "; ".join([*said, *([f"{_names(absent)} never started"] if absent else [])])


def _say(part: Part, ranks: Sequence[Whereabouts], behind: bool) -> str:
    names = _names([one.rank for one in ranks])
    if not behind:
        return f"{names} {'were' if len(ranks) > 1 else 'was'} in {part}"
    hosts = list(dict.fromkeys(one.host for one in ranks))
    more = f" and {len(hosts) - _SHOWN_HOSTS} more" if len(hosts) > _SHOWN_HOSTS else ""
    return f"{names} on {', '.join(hosts[:_SHOWN_HOSTS])}{more} did not get there: {part}"


def _names(ranks: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    said = ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in spans)
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {said}"
