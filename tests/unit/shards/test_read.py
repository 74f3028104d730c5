"""Reading rows: every form of text, what is dropped, damage, and memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steelrail.errors import InputError
from steelrail.shards.read import Source, as_bytes, batch_rows, document, read_rows

TEXTS = ["one", "", None, "zwei", "drei " * 50, "四"]


def write(path: Path, column: pa.Array | pa.ChunkedArray, **options: object) -> Path:
    pq.write_table(pa.table({"id": list(range(len(column))), "text": column}), path, **options)
    return path


def rows(path: Path, groups: list[int]) -> list[bytes | None]:
    with pa.OSFile(str(path)) as file:
        return [row for batch in read_rows(Source(file, 1 << 20, str(path)), groups, "text") for row in batch]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string()),
    ],
)
def test_every_form_of_text_gives_the_same_rows(tmp_path: Path, kind: pa.DataType) -> None:
    path = write(tmp_path / "a.parquet", pa.array(TEXTS).cast(kind), row_group_size=4)
    expected = [None if text is None else text.encode() for text in TEXTS]
    assert rows(path, [0, 1]) == expected


def test_only_the_row_groups_asked_for_are_read_in_their_order(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", pa.array([str(row) for row in range(10)]), row_group_size=2)
    assert rows(path, [3, 1]) == [b"6", b"7", b"2", b"3"]


def test_text_that_is_not_utf8_comes_out_as_it_is(tmp_path: Path) -> None:
    spoilt = pa.array([b"ok", b"\xff\xfe", b"\xed\xa0\x80"]).view(pa.string())
    assert rows(write(tmp_path / "a.parquet", spoilt), [0]) == [b"ok", b"\xff\xfe", b"\xed\xa0\x80"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (None, (None, "null")),
        (b"", (None, "empty")),
        (b"12345", ("12345", None)),
        (b"123456", (None, "too_long")),
        (b"\xc3", (None, "invalid_utf8")),
        (b"\xed\xa0\x80", (None, "invalid_utf8")),
        (b"\x00", ("\x00", None)),
        (b" \n", (" \n", None)),
    ],
)
def test_each_row_is_a_document_or_is_dropped_for_one_reason(
    row: bytes | None, expected: tuple[object, object]
) -> None:
    assert document(row, 5) == expected


def test_length_is_counted_in_bytes_of_utf8() -> None:
    assert document("ééé".encode(), 5) == (None, "too_long")


def test_a_damaged_page_is_an_input_error_that_names_the_file(tmp_path: Path) -> None:
    column = pa.array(["text " * 100 + str(row) for row in range(500)])
    path = write(tmp_path / "a.parquet", column, compression="zstd", use_dictionary=False, write_statistics=False)
    data, chunk = bytearray(path.read_bytes()), pq.read_metadata(path).row_group(0).column(1)
    middle = chunk.data_page_offset + chunk.total_compressed_size // 2
    data[middle : middle + 100] = b"\xff" * 100
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"readable Parquet, is damaged .*a\.parquet"):
        rows(path, [0])


def test_a_flipped_bit_that_decodes_is_found_by_the_pages_checksum(tmp_path: Path) -> None:
    column = pa.array(["aaaa" * 100 for _ in range(500)])
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True, "write_statistics": False}
    path = write(tmp_path / "a.parquet", column, **options)
    data = bytearray(path.read_bytes())
    data[data.index(b"aaaa" * 50) + 9] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged"):
        rows(path, [0])


def test_long_rows_are_decoded_a_few_at_a_time(tmp_path: Path) -> None:
    short = write(tmp_path / "s.parquet", pa.array([str(row) for row in range(2000)]), use_dictionary=False)
    long = write(tmp_path / "l.parquet", pa.array([str(row) * 1_000_000 for row in range(9)]), use_dictionary=False)
    same = write(tmp_path / "d.parquet", pa.array(["x"] * 2000), use_dictionary=True)
    sizes = [batch_rows(pq.read_metadata(path).row_group(0), "text") for path in (short, long, same)]
    assert sizes == [512, 7, 64]


def test_nulls_in_a_dictionary_stay_nulls() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0, None, 1]), pa.array(["a", "b"]))
    assert as_bytes(column) == [b"a", None, b"b"]


MEASURE = """
import resource, sys
import pyarrow as pa
from steelrail.shards.read import Source, read_rows
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def read(path):
    with pa.OSFile(path) as file:
        return sum(len(row) for rows in read_rows(Source(file, 1 << 20, path), [0], "text") for row in rows)
read(sys.argv[1])
before = peak()
print(read(sys.argv[2]), peak() - before)
"""


UNPACK = """
import sys
import pyarrow as pa
import pyarrow.parquet as pq
from steelrail.clients.process import memory_limited
from steelrail.errors import InputError
from steelrail.shards.read import Source, read_rows
rows = pa.table({"text": [" " * 500_000_000]})
pq.write_table(rows, sys.argv[1], compression="zstd", use_dictionary=False)
del rows
pa.set_memory_pool(pa.system_memory_pool())
try:
    with pa.OSFile(sys.argv[1]) as file, memory_limited(400_000_000):
        list(read_rows(Source(file, 1 << 20, sys.argv[1]), [0], "text"))
except InputError as error:
    print(error)
"""


def test_a_file_that_unpacks_into_more_than_the_memory_it_may_have_is_refused_and_named(tmp_path: Path) -> None:
    path = tmp_path / "bomb.parquet"
    said = subprocess.run([sys.executable, "-c", UNPACK, str(path)], check=True, capture_output=True, text=True).stdout
    assert path.stat().st_size < 200_000
    assert said.startswith(f"row of a corpus file must be within shards.memory_mb, is bigger ({path})")


def test_one_big_row_group_is_read_in_bounded_memory(tmp_path: Path) -> None:
    def generate(path: Path, num_rows: int) -> Path:
        text = "".join(chr(97 + index * index % 26) for index in range(5000))
        schema = pa.schema([("text", pa.string())])
        with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
            writer.write_table(
                pa.table({"text": [f"{row} {text}" for row in range(num_rows)]}), row_group_size=num_rows
            )
        return path

    small, big = generate(tmp_path / "small.parquet", 100), generate(tmp_path / "big.parquet", 60_000)
    assert pq.read_metadata(big).num_row_groups == 1
    command = [sys.executable, "-c", MEASURE, str(small), str(big)]
    read_bytes, grown = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert read_bytes > 300_000_000
    assert grown < 64_000_000
