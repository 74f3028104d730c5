"""Footers: what is told of a file, and what makes one unfit."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steelrail.artifacts.corpus import RowGroup
from steelrail.corpus.footer import check_column, check_magic, is_text, row_groups
from steelrail.errors import InputError


def parquet(rows: int, row_group_size: int) -> tuple[pq.FileMetaData, int]:
    sink = io.BytesIO()
    table = pa.table({"id": list(range(rows)), "text": ["x" * 100 + str(row) for row in range(rows)]})
    pq.write_table(table, sink, row_group_size=row_group_size, use_dictionary=False, compression="zstd")
    return pq.read_metadata(sink), sink.tell()


def test_row_groups_have_rows_and_uncompressed_text_bytes() -> None:
    metadata, size = parquet(10, 4)
    groups = row_groups("f", metadata, "text", size)
    expected = [metadata.row_group(index).column(1).total_uncompressed_size for index in range(3)]
    assert groups == tuple(RowGroup(rows=rows, size_bytes=size) for rows, size in zip((4, 4, 2), expected, strict=True))


def test_row_groups_that_cannot_lie_in_the_file_are_damage() -> None:
    metadata, _ = parquet(10, 4)
    with pytest.raises(InputError, match="damaged"):
        row_groups("f", metadata, "text", 100)


@pytest.mark.parametrize(
    ("size", "head", "tail", "fault"),
    [
        (100, b"PK\x03\x04", b"PAR1", "must be Parquet, is not"),
        (0, b"", b"", "must be Parquet, is not"),
        (8, b"PAR1", b"PAR1", "must be Parquet, is not"),
        (100, b"PAR1", b"abcd", "must be whole, is truncated at 100 bytes"),
        (100, b"PARE", b"PARE", "must be plain Parquet, is encrypted"),
        (100, b"PAR1", b"PARE", "must be plain Parquet, is encrypted"),
    ],
)
def test_ends_of_a_file_tell_what_it_is(size: int, head: bytes, tail: bytes, fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        check_magic("f", size, head, tail)


def test_a_whole_parquet_file_passes() -> None:
    check_magic("f", 100, b"PAR1", b"PAR1")


def test_a_missing_column_names_the_nearest_text_column() -> None:
    schema = pa.schema([("texts", pa.string()), ("text_id", pa.int64())])
    with pytest.raises(InputError, match=r"'text' must be there once, is missing .*text_column to 'texts'"):
        check_column("f", schema, "text")


def test_a_missing_column_without_a_near_one_lists_the_text_columns() -> None:
    schema = pa.schema([("body", pa.string()), ("n", pa.int64())])
    with pytest.raises(InputError, match=r"one of its text columns \('body'\)"):
        check_column("f", schema, "text")


def test_a_column_that_is_there_twice_is_refused() -> None:
    with pytest.raises(InputError, match="is there 2 times"):
        check_column("f", pa.schema([("text", pa.string()), ("text", pa.string())]), "text")


@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.string()), pa.struct([("a", pa.string())])])
def test_a_column_of_another_type_is_refused_by_name_of_the_type(kind: pa.DataType) -> None:
    with pytest.raises(InputError, match="must be text, is "):
        check_column("f", pa.schema([("text", kind)]), "text")


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.large_string()),
    ],
)
def test_every_form_of_text_is_text(kind: pa.DataType) -> None:
    assert is_text(kind)
