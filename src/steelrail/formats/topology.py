"""Slurm's network topology: ``scontrol show topology``, ``SLURM_TOPOLOGY_ADDR`` and host lists, to typed rows. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from steelrail.errors import ClusterError, must

MAX_HOSTS = 100_000
_FIELD = re.compile(r"(\w+)=(\S*)")
_GROUP = re.compile(r"^([^\[\]]*)(?:\[([^\[\]]*)\])?(.*)$")


@dataclass(frozen=True)
class Switch:
    """One switch. ``level`` 0 is a leaf; ``hosts`` are all hosts below it, ``switches`` the switches right below it."""

    name: str
    level: int
    hosts: tuple[str, ...]
    switches: tuple[str, ...]


def parse_topology(text: str) -> tuple[Switch, ...]:
    """Return the switches that ``scontrol show topology`` prints; none for a flat network."""
    rows = [dict(_FIELD.findall(line)) for line in text.splitlines() if line.strip().startswith("SwitchName=")]
    return tuple(_switch(row) for row in rows)


def leaf_of(host: str, switches: Iterable[Switch]) -> str | None:
    """Return the leaf switch that a host hangs on, or none when the topology does not hold it."""
    return next((switch.name for switch in switches if switch.level == 0 and host in switch.hosts), None)


def leaf_of_address(address: str, pattern: str) -> str | None:
    """Return the leaf switch in Slurm's ``SLURM_TOPOLOGY_ADDR`` (``spine.leaf1.node3``), none on a flat network.

    ``pattern`` is ``SLURM_TOPOLOGY_ADDR_PATTERN`` (``switch.switch.node``). Switch names may not hold a dot, host names
    may: so the pattern's count of switches is taken from the left.
    """
    num_switches = sum(part == "switch" for part in pattern.split("."))
    parts = address.split(".")
    if num_switches == 0 or len(parts) <= num_switches:
        return None
    return parts[num_switches - 1] or None


def expand_hosts(text: str) -> tuple[str, ...]:
    """Return the hosts of a Slurm host list: ``node[1-3,7],gpu-[08-10]``. Raises ``ClusterError`` if malformed."""
    hosts: list[str] = []
    for group in _split_groups(text):
        hosts += _expand_group(group)
        if len(hosts) > MAX_HOSTS:
            raise ClusterError(must("a host list", f"at most {MAX_HOSTS} hosts", "longer", text[:80], "shorten it"))
    return tuple(hosts)


def _switch(row: dict[str, str]) -> Switch:
    level = row.get("Level", "")
    # topology.conf itself has no levels: a switch that lists nodes is a leaf there.
    number = int(level) if level.isdigit() else int("Nodes" not in row)
    return Switch(row["SwitchName"], number, _names(row.get("Nodes", "")), _names(row.get("Switches", "")))


def _names(text: str) -> tuple[str, ...]:
    return () if text in ("", "(null)", "none") else expand_hosts(text)


def _split_groups(text: str) -> list[str]:
    """Split at commas that are not inside brackets."""
    return [group for group in re.split(r",(?![^\[]*\])", text.strip()) if group]


def _expand_group(group: str) -> list[str]:
    match = _GROUP.match(group)
    if match is None or (match[2] is None and re.search(r"[\[\]]", group)):
        raise ClusterError(
            must("a host list", "like node[1-4,7]", group[:80], "Slurm", "check the cluster's node names")
        )
    head, ranges, tail = match.groups()
    if ranges is None:
        return [group]
    rests = _expand_group(tail) if tail else [""]
    return [f"{head}{number}{rest}" for number in _numbers(ranges) for rest in rests]


def _numbers(ranges: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if not 0 <= int(last) - int(first) < MAX_HOSTS:
            raise ClusterError(must("a host range", "like 1-4", part[:80], "Slurm", "check the cluster's node names"))
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers
