"""Rows of one text column out of Parquet, in bounded memory, and which of them are documents.

Memory is bounded by pages and small batches, whatever the size of a row group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from steelrail.errors import InputError, must

BATCH_ROWS = 512
BATCH_BYTES = 8_000_000
# A page of distinct values may stand for far more text than its bytes say.
DICTIONARY_BATCH_ROWS = 64


@dataclass(frozen=True)
class Source:
    """An opened Parquet file, the bytes to read at once, and its name for messages."""

    file: pa.NativeFile
    buffer_bytes: int
    uri: str


def read_rows(source: Source, groups: Sequence[int], column: str) -> Iterator[list[bytes | None]]:
    """Yield the rows of row groups ``groups`` in order, in small lists; a null is none. Raises ``InputError``."""
    try:
        parquet = pq.ParquetFile(
            source.file, pre_buffer=False, buffer_size=source.buffer_bytes, page_checksum_verification=True
        )
        for group in groups:
            rows = batch_rows(parquet.metadata.row_group(group), column)
            batches = parquet.iter_batches(rows, row_groups=[group], columns=[column], use_threads=False)
            yield from (as_bytes(batch.column(0)) for batch in batches)
    except MemoryError as error:
        do = "raise shards.memory_mb, or leave the file out of corpus.paths"
        raise InputError(must("row of a corpus file", "within shards.memory_mb", "bigger", source.uri, do)) from error
    except (OSError, pa.ArrowException) as error:
        why = " ".join(str(error).split())[:200]
        raise InputError(
            must("corpus file", "readable Parquet", f"damaged ({why})", source.uri, "copy it again")
        ) from error


def batch_rows(group: pq.RowGroupMetaData, column: str) -> int:
    """Return how many rows of a row group to decode at once, so that a batch is about 8 MB of text at most."""
    chunks = (group.column(index) for index in range(group.num_columns))
    chunk = next(chunk for chunk in chunks if chunk.path_in_schema == column)
    mean_bytes = max(1, int(chunk.total_uncompressed_size) // max(1, int(group.num_rows)))
    most = DICTIONARY_BATCH_ROWS if chunk.has_dictionary_page else BATCH_ROWS
    return max(1, min(most, BATCH_BYTES // mean_bytes))


def as_bytes(column: pa.Array) -> list[bytes | None]:
    """Return text as bytes, undecoded: Arrow does not check that strings in a file are UTF-8."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    rows: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
    return rows


def document(row: bytes | None, max_bytes: int) -> tuple[str, None] | tuple[None, str]:
    """Return (text, none), or (none, reason) for a row that is dropped: null, empty, too_long, invalid_utf8."""
    if row is None:
        return None, "null"
    if not row:
        return None, "empty"
    if len(row) > max_bytes:
        return None, "too_long"
    try:
        return row.decode("utf-8"), None
    except UnicodeDecodeError:
        return None, "invalid_utf8"
