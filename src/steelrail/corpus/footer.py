"""A Parquet footer to row groups, and every way in which a file can be unfit. Pure: it is given what was read."""

from __future__ import annotations

import difflib

import pyarrow as pa
import pyarrow.parquet as pq

from steelrail.artifacts.corpus import RowGroup
from steelrail.errors import InputError, must

MAGIC = b"PAR1"
ENCRYPTED_MAGIC = b"PARE"
MIN_BYTES = 12  # magic, footer length, magic


def check_magic(uri: str, size_bytes: int, head: bytes, tail: bytes) -> None:
    """Raise ``InputError`` unless the first and last four bytes are those of a whole, plain Parquet file."""
    if ENCRYPTED_MAGIC in (head, tail):
        raise InputError(must("corpus file", "plain Parquet", "encrypted", uri, "decrypt it"))
    if size_bytes < MIN_BYTES or head != MAGIC:
        actual = f"not ({size_bytes} bytes that begin with {head!r})"
        raise InputError(must("corpus file", "Parquet", actual, uri, "convert it, or leave it out of corpus.paths"))
    if tail != MAGIC:
        raise InputError(must("corpus file", "whole", f"truncated at {size_bytes} bytes", uri, "copy it again"))


def damaged(uri: str, error: Exception) -> InputError:
    """Return the error for a file whose footer cannot be read."""
    why = " ".join(str(error).split())[:200]
    return InputError(must("corpus file", "readable Parquet", f"damaged ({why})", uri, "copy it again"))


def check_column(uri: str, schema: pa.Schema, column: str) -> None:
    """Raise ``InputError`` unless ``column`` is there once, at the top level, and holds text."""
    count = schema.names.count(column)
    if count != 1:
        actual = "missing" if count == 0 else f"there {count} times"
        raise InputError(must(f"column {column!r}", "there once", actual, uri, _advice(column, schema)))
    kind = schema.field(column).type
    if not is_text(kind):
        do = "name a text column in corpus.text_column, or convert it to strings"
        raise InputError(must(f"column {column!r}", "text", kind, uri, do))


def is_text(kind: pa.DataType) -> bool:
    """Say whether a column of this type holds UTF-8 text; plain bytes may (old writers leave out the mark)."""
    types = pa.types
    if types.is_dictionary(kind):
        return is_text(kind.value_type)
    tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary)
    return any(test(kind) for test in tests)


def row_groups(uri: str, metadata: pq.FileMetaData, column: str, size_bytes: int) -> tuple[RowGroup, ...]:
    """Return the row groups. Raises ``InputError`` when they cannot lie in a file of this size."""
    groups = [_row_group(metadata.row_group(index), column) for index in range(metadata.num_row_groups)]
    end = max((end for _, end in groups), default=0)
    if end > size_bytes or sum(group.rows for group, _ in groups) != metadata.num_rows:
        raise damaged(uri, ValueError(f"row groups reach to byte {end} of {size_bytes}"))
    return tuple(group for group, _ in groups)


def _row_group(group: pq.RowGroupMetaData, column: str) -> tuple[RowGroup, int]:
    chunks = [group.column(index) for index in range(group.num_columns)]
    chunk = next(chunk for chunk in chunks if chunk.path_in_schema == column)
    start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    size = max(0, chunk.total_uncompressed_size)
    return RowGroup(rows=group.num_rows, size_bytes=size), (start or 0) + chunk.total_compressed_size


def _advice(column: str, schema: pa.Schema) -> str:
    texts = [field.name for field in schema if is_text(field.type)]
    near = difflib.get_close_matches(column, texts, n=1, cutoff=0.5)
    if near:
        return f"set corpus.text_column to {near[0]!r}, the nearest one"
    listed = ", ".join(repr(name) for name in texts[:10]) or "none"
    return f"set corpus.text_column to one of its text columns ({listed})"
