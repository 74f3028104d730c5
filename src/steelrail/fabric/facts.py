"""What the ranks of a fabric job found, before it is judged: the raw file that rank 0 writes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from steelrail.artifacts.fabric import DeviceFact, Measurement, NodeFact, PairMeasurement
from steelrail.artifacts.files import Artifact
from steelrail.errors import FabricError


class RankFact(Artifact):
    """What one rank knows of itself and of its node."""

    rank: int
    host: str
    leaf: str | None
    device: DeviceFact
    nics: tuple[str, ...]
    versions: dict[str, str]


class Facts(Artifact):
    """``report.json`` in the job folder. Times are Unix seconds; ``seconds`` says how long the parts took."""

    CALLED: ClassVar[str] = "facts of the fabric job"
    COMMAND: ClassVar[str] = "steelrail fabric"

    version: int = 1
    run: str
    key: str
    backend: str
    device: str
    nodes: tuple[NodeFact, ...]
    pairs: tuple[PairMeasurement, ...]
    world: tuple[Measurement, ...]
    started: float
    measured: float
    seconds: dict[str, float]


class AbsentError(FabricError):
    """Some ranks did not come to where all meet."""


class RankError(Artifact):
    """``error-rank-N.json`` in a try's folder: why a rank ended. ``again``: another try may go better."""

    CALLED: ClassVar[str] = "error of a rank of the fabric job"
    COMMAND: ClassVar[str] = "steelrail fabric"

    rank: int
    host: str
    kind: str
    message: str
    doing: str
    again: bool


def merge_nodes(facts: Iterable[RankFact]) -> tuple[NodeFact, ...]:
    """Return one record per host, in the order of their first ranks; devices in rank order."""
    by_host: dict[str, list[RankFact]] = {}
    for fact in sorted(facts, key=lambda fact: fact.rank):
        by_host.setdefault(fact.host, []).append(fact)
    return tuple(_node(host, ranks) for host, ranks in by_host.items())


def _node(host: str, ranks: list[RankFact]) -> NodeFact:
    return NodeFact(
        host=host,
        leaf=ranks[0].leaf,
        ranks=tuple(fact.rank for fact in ranks),
        devices=tuple(fact.device for fact in ranks),
        nics=ranks[0].nics,
        versions=ranks[0].versions,
    )
