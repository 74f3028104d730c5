"""Training or held out, by a hash of the text alone: equal texts go together, on any part and in any order. Pure."""

from __future__ import annotations

import xxhash

from steelrail.artifacts.shards import Split

MILLION = 1_000_000


def choose_split(text: bytes, heldout_per_million: int) -> Split:
    """Return the split of a document from its UTF-8 ``text`` (XXH3, 64 bit)."""
    return "heldout" if xxhash.xxh3_64_intdigest(text) % MILLION < heldout_per_million else "train"
