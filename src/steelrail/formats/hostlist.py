"""Slurm's host lists: ``node[1-3,07],gpu5`` to names and back. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby, product

_BRACKET = re.compile(r"\[([^\]]*)\]")
_NUMBERED = re.compile(r"^(.*?)(\d+)$")


def expand(text: str) -> tuple[str, ...]:
    """Return the host names of a host list, in its order. ``""`` and ``(null)`` are no hosts.

    Raises ``ValueError`` for a list that Slurm would not write.
    """
    if text in ("", "(null)", "None assigned", "None"):
        return ()
    return tuple(host for item in _split(text) for host in _expand_item(item))


def compress(hosts: Iterable[str]) -> str:
    """Return a host list that names ``hosts``, sorted and without repeats: ``node[1-3],node07``."""
    plain, numbered = _parse(set(hosts))
    groups = [_group(prefix, width, [number for _, _, number in members]) for (prefix, width), members in numbered]
    return ",".join(sorted(plain) + groups)


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    items, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            items.append(text[start:index])
            start = index + 1
    if depth:
        raise ValueError(f"host list must have closed brackets, is {text!r}")
    return [*items, text[start:]]


def _expand_item(item: str) -> list[str]:
    pieces: list[list[str]] = []
    place = 0
    for match in _BRACKET.finditer(item):
        pieces += [[item[place : match.start()]], _numbers(match.group(1))]
        place = match.end()
    pieces.append([item[place:]])
    return ["".join(parts) for parts in product(*pieces)]


def _numbers(text: str) -> list[str]:
    numbers = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        numbers += [f"{number:0{len(low)}d}" for number in range(int(low), int(high or low) + 1)]
    return numbers


def _parse(hosts: set[str]) -> tuple[list[str], list[tuple[tuple[str, int], list[tuple[str, int, int]]]]]:
    """Split hosts into those without a number and groups of one prefix and width of digits."""
    plain, numbered = [], []
    for host in hosts:
        match = _NUMBERED.match(host)
        if match is None:
            plain.append(host)
            continue
        digits = match.group(2)
        # Only numbers written with leading zeros have a width; node9 and node10 belong together.
        numbered.append((match.group(1), len(digits) if digits.startswith("0") else 0, int(digits)))
    numbered.sort()
    return plain, [(head, list(members)) for head, members in groupby(numbered, key=lambda one: one[:2])]


def _group(prefix: str, width: int, numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    parts = [f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}" for low, high in runs]
    if len(numbers) == 1:
        return f"{prefix}{parts[0]}"
    return f"{prefix}[{','.join(parts)}]"
