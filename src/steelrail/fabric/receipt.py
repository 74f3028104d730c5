"""The receipt: for which hardware, and how long, a report counts. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from steelrail.artifacts.fabric import FabricReport, NodeFact
from steelrail.config.keys import digest, fabric_key
from steelrail.config.schema import Run
from steelrail.units import show_seconds

# Clocks of head and nodes may differ by this much.
_SKEW_SECONDS = 60.0


def hardware_digest(nodes: Iterable[NodeFact]) -> str:
    """Return the digest of hosts, their devices and versions; the order of nodes and what was measured do not count."""
    rows = [
        [node.host, node.leaf, sorted([one.name, one.uuid, one.memory_bytes] for one in node.devices), node.versions]
        for node in sorted(nodes, key=lambda node: node.host)
    ]
    return digest(rows)


@dataclass(frozen=True)
class Lapse:
    """Why a report does not admit a run: what it must be, and what it is."""

    be: str
    actual: str


def lapse(report: FabricReport, now: float, run: Run) -> Lapse | None:
    """Return why a report does not admit this run, or none while it does: fit, same key, in its time, not edited."""
    key = fabric_key(run)
    if not report.fit:
        return Lapse("of fit nodes", f"of unfit ones ({', '.join(report.exclude)})")
    if report.key != key:
        return Lapse(f"of this run file's shape, model and thresholds (key {key})", f"of others (key {report.key})")
    if now >= report.valid_until:
        valid = show_seconds(report.valid_until - report.measured)
        return Lapse(f"younger than {valid} (fabric.valid_hours)", f"{show_seconds(now - report.measured)} old")
    if now < report.measured - _SKEW_SECONDS:
        return Lapse("of the past", f"measured {show_seconds(report.measured - now)} ahead of this host's clock")
    if report.hardware_digest != hardware_digest(report.nodes):
        return Lapse("as the fabric stage wrote it", "changed")
    return None


def uncovered(report: FabricReport, devices: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return which of these devices (host, hardware id) the report does not speak of: ``node5``, ``node2 (GPU-1f)``."""
    known = {node.host: {one.uuid for one in node.devices} for node in report.nodes}
    strange = [(host, uuid) for host, uuid in devices if uuid not in known.get(host, ())]
    return tuple(dict.fromkeys(f"{host} ({uuid})" if host in known else host for host, uuid in strange))
