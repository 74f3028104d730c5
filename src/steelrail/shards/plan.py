"""Which part reads which row groups. Pure.

Parts are contiguous and ordered: their rows, one part after the other, are the corpus in its own order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steelrail.artifacts.corpus import CorpusObject


@dataclass(frozen=True)
class Piece:
    """Consecutive row groups of one corpus object."""

    corpus_object: CorpusObject
    groups: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Uncompressed bytes of the text column."""
        return sum(self.corpus_object.row_groups[group].size_bytes for group in self.groups)

    @property
    def rows(self) -> int:
        """Rows to be read."""
        return sum(self.corpus_object.row_groups[group].rows for group in self.groups)


def plan_parts(objects: Sequence[CorpusObject], num_parts: int) -> tuple[tuple[Piece, ...], ...]:
    """Return the pieces of each part, whole row groups, near-equal in bytes; some parts are empty when groups are few.

    No part exceeds its even share by more than the largest row group.
    """
    units = [(index, group) for index, one in enumerate(objects) for group in range(len(one.row_groups))]
    sizes = [objects[index].row_groups[group].size_bytes for index, group in units]
    owners = assign(sizes, num_parts)
    parts: list[list[tuple[int, int]]] = [[] for _ in range(num_parts)]
    for unit, owner in zip(units, owners, strict=True):
        parts[owner].append(unit)
    return tuple(_pieces(objects, part) for part in parts)


def assign(sizes: Sequence[int], num_parts: int) -> list[int]:
    """Return the part of each size, never falling: a unit goes where its middle lies on the line of all bytes."""
    total = sum(sizes)
    owners, before = [], 0
    for size in sizes:
        middle = 2 * before + size
        owners.append(min(num_parts - 1, middle * num_parts // (2 * total)) if total else 0)
        before += size
    return owners


def _pieces(objects: Sequence[CorpusObject], units: list[tuple[int, int]]) -> tuple[Piece, ...]:
    groups: dict[int, list[int]] = {}
    for index, group in units:
        groups.setdefault(index, []).append(group)
    return tuple(Piece(objects[index], tuple(chosen)) for index, chosen in groups.items())
