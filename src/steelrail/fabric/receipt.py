"""The receipt: for which hardware, and how long, a report counts. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from steelrail.artifacts.fabric import FabricReport, NodeFact
from steelrail.config.keys import digest, fabric_key
from steelrail.config.schema import Run

# Clocks of head and nodes may differ by this much.
_SKEW_SECONDS = 60.0


def hardware_digest(nodes: Iterable[NodeFact]) -> str:
    """Return the digest of hosts, their devices and versions; the order of nodes and what was measured do not count."""
    rows = [
        [node.host, node.leaf, sorted([one.name, one.uuid, one.memory_bytes] for one in node.devices), node.versions]
        for node in sorted(nodes, key=lambda node: node.host)
    ]
    return digest(rows)


def is_valid(report: FabricReport, now: float, run: Run) -> bool:
    """Return whether a report still admits this run: fit, of the same key, in its time, true to its hardware."""
    in_time = report.measured - _SKEW_SECONDS <= now < report.valid_until
    own = report.hardware_digest == hardware_digest(report.nodes)
    return report.fit and in_time and own and report.key == fabric_key(run)


def covers(report: FabricReport, nodes: Iterable[NodeFact]) -> bool:
    """Return whether these nodes are the very ones of the report: same hosts, hardware ids and versions."""
    return report.hardware_digest == hardware_digest(nodes)


def hosts(report: FabricReport) -> tuple[str, ...]:
    """Return the hosts that the report is about."""
    return tuple(node.host for node in report.nodes)
