"""First values of parameters: a function of (seed, parameter, row) only, so that any rank can make just its own rows.

Normal with deviation 0.02; what writes into the residual stream is scaled down by sqrt(2 x blocks), as in GPT-2
(https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf, section 2.3).
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

DEVIATION = 0.02
# Rows drawn from one generator: a rank draws at most this many rows too many at each end of its shard.
_ROWS_PER_SEED = 64


def fill_rows(rows: Tensor, name: str, shape: tuple[int, ...], first_row: int, num_layers: int, seed: int) -> None:
    """Fill ``rows``, which are rows ``first_row`` onwards of the parameter ``name`` of the given whole shape."""
    if len(shape) == 1:
        rows.fill_(1.0)
        return
    drawn = torch.empty(rows.shape, dtype=torch.float32)
    deviation = deviation_of(name, num_layers)
    end = first_row + rows.shape[0]

    def draw(block_start: int) -> None:
        block = _block(name, shape, block_start, seed, deviation)
        low, high = max(first_row, block_start), min(end, block_start + _ROWS_PER_SEED)
        drawn[low - first_row : high - first_row] = block[low - block_start : high - block_start]

    # A generator draws on one thread only; 4 billion values take minutes so, and seconds on a rank's own CPUs.
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        deque(threads.map(draw, range(first_row // _ROWS_PER_SEED * _ROWS_PER_SEED, end, _ROWS_PER_SEED)), maxlen=0)
    rows.copy_(drawn)


def deviation_of(name: str, num_layers: int) -> float:
    """Return the standard deviation of a matrix's first values."""
    writes_stream = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
    return DEVIATION / math.sqrt(2 * num_layers) if writes_stream else DEVIATION


def seed_of(seed: int, name: str, block: int) -> int:
    """Return the generator's seed of one block of rows: 63 bits of a hash."""
    digest = hashlib.blake2b(f"{seed}/{name}/{block}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _block(name: str, shape: tuple[int, ...], start: int, seed: int, deviation: float) -> Tensor:
    # Whole blocks even at the end of a parameter: torch draws differently for other counts.
    generator = torch.Generator(device="cpu").manual_seed(seed_of(seed, name, start // _ROWS_PER_SEED))
    return torch.empty((_ROWS_PER_SEED, *shape[1:]), dtype=torch.float32).normal_(0.0, deviation, generator=generator)
