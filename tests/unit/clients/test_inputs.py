"""Input objects: places, patterns, and a stored object as a file. Real files and moto are in ``corpus``' tests."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest

from steelrail.clients.inputs import RangeFile, below_pattern, glob_pattern, split_s3
from steelrail.errors import InputError

DATA = bytes(range(200))


class Memory:
    """As much of a store as a range file asks for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self.asked.append((start, length))
        return DATA[start : start + length]


def range_file() -> tuple[RangeFile, Memory]:
    memory = Memory()
    return RangeFile(memory, "k", len(DATA)), memory  # type: ignore[arg-type]


def test_reads_ask_for_just_what_is_wanted() -> None:
    file, memory = range_file()
    file.seek(-10, io.SEEK_END)
    assert (file.read(4), file.tell(), file.read(), file.read(5)) == (DATA[190:194], 194, DATA[194:], b"")
    assert memory.asked == [(190, 4), (194, 6)]


def test_pyarrow_reads_it_as_a_random_access_file() -> None:
    native = pa.PythonFile(range_file()[0], mode="r")
    assert (native.size(), native.read_at(3, 50)) == (200, DATA[50:53])


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a/*.parquet", ["a/x.parquet"], ["a/b/x.parquet", "a/x.parquet.bak"]),
        ("a/**/x", ["a/x", "a/b/x", "a/b/c/x"], ["a/bx", "b/x"]),
        ("a/**", ["a/x", "a/b/c"], ["b/x"]),
        ("a?c", ["abc"], ["a/c", "ac"]),
        ("[a-c]1", ["b1"], ["d1"]),
        ("[!a-c]1", ["d1"], ["b1"]),
        ("a+(b).x", ["a+(b).x"], ["aab.x", "a+(b)yx"]),
    ],
)
def test_globs_over_keys_mean_what_a_shell_means(pattern: str, yes: list[str], no: list[str]) -> None:
    rule = glob_pattern(pattern)
    assert [key for key in (*yes, *no) if rule.fullmatch(key)] == yes


def test_a_prefix_is_a_folder_or_one_object() -> None:
    rule = below_pattern("a/b", ".parquet")
    keys = ["a/b/x.parquet", "a/b/c/y.parquet", "a/bc/z.parquet", "a/b/x.txt", "a/b"]
    assert [key for key in keys if rule.fullmatch(key)] == ["a/b/x.parquet", "a/b/c/y.parquet", "a/b"]


@pytest.mark.parametrize("uri", ["s3://", "s3:///key"])
def test_an_address_without_a_bucket_is_refused(uri: str) -> None:
    with pytest.raises(InputError, match="s3://bucket/prefix"):
        split_s3(uri)


def test_an_address_is_bucket_and_key() -> None:
    assert split_s3("s3://b/a/c") == ("b", "a/c")
    assert split_s3("s3://b") == ("b", "")
