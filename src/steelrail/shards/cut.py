"""Long documents in pieces that are tokenised apart to the very same tokens, so that memory stays bounded. Pure.

A cut lies after a line break that has text on both sides. The splitting rules below never match across it (no branch
holds a line break before a non-space), and what they match before it does not depend on what follows: a lone line break
is one match with or without a neighbour. Rules and tokenizers not known here are never cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_HEAD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
KNOWN_PATTERNS = frozenset({_HEAD + r"\p{N}{1,3}" + _TAIL, _HEAD + r"\p{N}" + _TAIL})  # Llama-3 and cl100k; Qwen2
PIECE_CHARS = 1_000_000
_CUT = re.compile(r"(?<=\S\n)(?=\S)")


def may_cut(described: Any) -> bool:
    """Say whether the tokenizer of a parsed ``tokenizer.json`` is of the kind that ``pieces`` is exact for."""
    # A token added by hand may reach over the cut, or swallow the line break before it.
    plain = all(token["special"] for token in described["added_tokens"]) and described.get("normalizer") is None
    rule = described.get("pre_tokenizer") or {}
    steps = rule.get("pretokenizers", [rule])
    return plain and _is_byte_level(steps) and described["model"].get("type", "BPE") == "BPE"


def pieces(text: str, max_chars: int = PIECE_CHARS) -> list[str]:
    """Return ``text`` cut into pieces of about ``max_chars`` where cuts are to be had; joined they are the text."""
    found, start = [], 0
    while len(text) - start > max_chars:
        cut = _CUT.search(text, start + max_chars)
        if cut is None:
            break
        found.append(text[start : cut.start()])
        start = cut.start()
    return [*found, text[start:]]


def batches(texts: Iterable[str], max_chars: int = PIECE_CHARS) -> Iterator[list[str]]:
    """Yield ``texts`` in lists of at most ``max_chars`` in all (a longer text goes alone)."""
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and size + len(text) > max_chars:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


def _is_byte_level(steps: list[Any]) -> bool:
    """Say whether text is split by one known rule and then read as bytes, without a space put before it."""
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return not steps[0]["add_prefix_space"] and bool(steps[0]["use_regex"])
    if kinds != ["Split", "ByteLevel"]:
        return False
    split, to_bytes = steps
    known = split["pattern"].get("Regex") in KNOWN_PATTERNS and split["behavior"] == "Isolated" and not split["invert"]
    return known and not to_bytes["add_prefix_space"] and not to_bytes["use_regex"]
