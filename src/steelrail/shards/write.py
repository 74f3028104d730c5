"""Documents' tokens to data shard files: Arrow IPC, one record batch, the same bytes for the same tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from steelrail.artifacts.shards import Split

Tokens = npt.NDArray[np.uint32]

# Neither rows nor tokens may be null: readers then need no validity bitmaps.
SCHEMA = pa.schema([pa.field("tokens", pa.large_list(pa.field("item", pa.uint32(), nullable=False)), nullable=False)])


@dataclass(frozen=True)
class Packed:
    """Whole documents one after the other. ``ends`` (int64) holds where each ends in ``tokens`` (uint32)."""

    tokens: Tokens
    ends: npt.NDArray[np.int64]


class Packer:
    """Gathers documents of one split until a data shard is full. Its buffer is claimed once, filled page by page."""

    def __init__(self, shard_tokens: int) -> None:
        self._shard_tokens = shard_tokens
        self._tokens: Tokens = np.empty(shard_tokens, dtype=np.uint32)
        self._ends: list[int] = []

    @property
    def num_tokens(self) -> int:
        """Tokens gathered and not yet taken."""
        return self._ends[-1] if self._ends else 0

    def fits(self, num_tokens: int) -> bool:
        """Say whether a document of this length may join those gathered (an empty packer takes any)."""
        return not self._ends or self.num_tokens + num_tokens <= self._shard_tokens

    def add(self, tokens: Tokens, end_of_text_id: int) -> None:
        """Append one document and its end-of-text token."""
        start = self.num_tokens
        end = start + len(tokens) + 1
        if end > len(self._tokens):  # one document above the limit: a shard of its own
            self._tokens = np.empty(end, dtype=np.uint32)
        self._tokens[start : end - 1] = tokens
        self._tokens[end - 1] = end_of_text_id
        self._ends.append(end)

    def take(self) -> Packed:
        """Return what was gathered, and begin anew. The result is valid until the next ``add``."""
        packed = Packed(self._tokens[: self.num_tokens], np.array(self._ends, dtype=np.int64))
        self._ends = []
        return packed


def shard_name(part: int, index: int, split: Split) -> str:
    """Return the name of the ``index``-th data shard of a part: ``part-00003-00000.train.arrow``."""
    return f"part-{part:05d}-{index:05d}.{split}.arrow"


def write_packed(sink: pa.NativeFile, packed: Packed) -> None:
    """Write an Arrow IPC file: column ``tokens: large_list<uint32>``, a row per document, uncompressed, one batch."""
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), packed.ends])
    rows = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(packed.tokens), type=SCHEMA.field("tokens").type)
    options = pa.ipc.IpcWriteOptions(compression=None)
    with pa.ipc.new_file(sink, SCHEMA, options=options) as writer:
        writer.write_batch(pa.record_batch([rows], schema=SCHEMA))
