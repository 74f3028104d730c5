"""Text of ``sinfo`` in the format that the door asks for: what a partition can give. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

NODE_FORMAT = "%N|%T|%c|%G"
PARTITION_FORMAT = "%R"
_GRES = re.compile(r"^([A-Za-z0-9_-]+)(?::([A-Za-z0-9_.-]*[A-Za-z_][A-Za-z0-9_.-]*))?(?::(\d+))?(?:\(.*\))?$")


@dataclass(frozen=True)
class Gres:
    """A generic resource of a node, such as 16 of ``gpu`` of type ``h100``."""

    name: str
    type: str
    count: int


@dataclass(frozen=True)
class NodeOffer:
    """What one node of a partition offers. ``state`` is Slurm's word without its marks."""

    name: str
    state: str
    cpus: int
    gres: tuple[Gres, ...]

    def count(self, resource: str) -> int:
        """Return how many of ``resource`` (``gpu`` or ``gpu:h100``) this node has."""
        name, _, kind = resource.partition(":")
        return sum(one.count for one in self.gres if one.name == name and kind in ("", one.type))

    @property
    def up(self) -> bool:
        """Whether jobs can run here now or once others end."""
        return self.state in (
            "idle",
            "mixed",
            "allocated",
            "completing",
            "planned",
            "reserved",
            "allocated+",
            "blocked",
        )


def parse_nodes(text: str) -> tuple[NodeOffer, ...]:
    """Return the rows of ``sinfo --Node --noheader --format=NODE_FORMAT``, one a node."""
    rows = (line.strip().split("|") for line in text.splitlines() if line.count("|") == 3)
    offers = {
        name: NodeOffer(name, re.sub(r"[^a-z+]", "", state), int(cpus.rstrip("+")), parse_gres(gres))
        for name, state, cpus, gres in rows
    }
    return tuple(offers.values())


def parse_gres(text: str) -> tuple[Gres, ...]:
    """Return the resources in ``gpu:h100:16(S:0-1),nvme:2``; ``(null)`` is none."""
    items = re.split(r",(?![^(]*\))", text)
    matches = (_GRES.match(item.strip()) for item in items if item.strip() not in ("", "(null)"))
    return tuple(Gres(one.group(1), one.group(2) or "", int(one.group(3) or 1)) for one in matches if one)
