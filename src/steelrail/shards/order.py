"""The order of data: a function of (seed, epoch, place) and nothing else. Pure.

A Feistel network over the least even number of bits that holds all sequences, walked until it lands among them, is a
permutation that can be asked for any place at once: the cursor is the step, and resuming costs nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

ROUNDS = 8
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # splitmix64's finalizer (Steele et al., 2014)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


@dataclass(frozen=True)
class Order:
    """Order of ``num_sequences`` sequences under ``seed``; each epoch has its own permutation."""

    num_sequences: int
    seed: int

    def ids(self, start: int, count: int) -> Ids:
        """Return the ids (int64, shape [count]) of places ``start .. start + count``; places run on over epochs."""
        places = np.arange(start, start + count, dtype=np.uint64)
        epochs = places // np.uint64(self.num_sequences)
        within = places % np.uint64(self.num_sequences)
        parts = [
            permute(within[epochs == epoch], self.num_sequences, self.seed, int(epoch)) for epoch in np.unique(epochs)
        ]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def step_ids(self, step: int, batch_sequences: int, rank: int = 0, world_size: int = 1) -> Ids:
        """Return the ids of one rank's contiguous slice of the global batch of ``step`` (steps count from 0)."""
        share = batch_sequences // world_size
        return self.ids(step * batch_sequences + rank * share, share)


def permute(places: _Words, size: int, seed: int, epoch: int) -> Ids:
    """Return the image (int64) of ``places`` (uint64, each below ``size``) under the permutation of an epoch."""
    half_bits = max(1, -(-(size - 1).bit_length() // 2))
    keys = round_keys(seed, epoch)
    values = _network(places, half_bits, keys)
    outside = np.flatnonzero(values >= size)
    while len(outside):
        values[outside] = _network(values[outside], half_bits, keys)
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def round_keys(seed: int, epoch: int) -> list[int]:
    """Return the keys of the rounds."""
    text = hashlib.sha512(f"steelrail order 1: seed {seed} epoch {epoch}".encode()).digest()
    return [int(word) for word in np.frombuffer(text, dtype="<u8")[:ROUNDS]]


def _network(values: _Words, half_bits: int, keys: list[int]) -> _Words:
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ np.uint64(key)) & mask)
    return (left << shift) | right


def _mix(words: _Words) -> _Words:
    words = (words ^ (words >> _SHIFTS[0])) * _MIX[0]
    words = (words ^ (words >> _SHIFTS[1])) * _MIX[1]
    return words ^ (words >> _SHIFTS[2])
