import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from steelrail.artifacts.files import append_line
from steelrail.artifacts.reading import read_lines, reading
from steelrail.errors import InputError


@dataclass(frozen=True)
class Line:
    name: str
    number: int


def test_lines_come_back_and_what_a_killed_writer_left_is_left_out_wherever_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append_line(path, b'{"name":"a","number":1}')
    with path.open("ab") as file:
        file.write(b'{"name":"b","nu')
    append_line(path, b'{"name":"c","number":3}')
    with path.open("ab") as file:
        file.write(b'{"na')
    assert [Line("a", 1), Line("c", 3)] == read_lines(path, Line, "line")
    assert [] == read_lines(tmp_path / "nothing", Line, "line")


def test_zeros_that_a_power_cut_left_are_a_torn_line(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b'{"name":"a","number":1}\n' + b"\0" * 40)
    assert [Line("a", 1)] == read_lines(tmp_path / "lines", Line, "line")


@pytest.mark.parametrize(
    "damage",
    [
        b"\xd9\x04\xff",
        b"\xd9\x04\xff\n",
        b'{"a": [1e999, null]}\n[]\n',
        b"[]\n",
        b'{"name":"a"}\n',
        b'{"name":"a","number":"1"}\n',
        b'{"name":"\xff","number":1}\n',
        b"x" * 300,
        b"[" * 100_000 + b"\n",
    ],
)
def test_what_no_writer_wrote_is_an_error_that_names_the_line(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "lines").write_bytes(b'{"name":"a","number":1}\n' + damage)
    with pytest.raises(InputError, match=r"thing must be as it was written, is damaged \(.*lines, line 2\)") as raised:
        read_lines(tmp_path / "lines", Line, "thing")
    assert not any(word in str(raised.value) for word in ("Input", "codec", "pydantic", "__init__", "Error"))


def test_random_bytes_are_never_read_as_nothing(tmp_path: Path) -> None:
    for length in (1, 10, 300):
        (tmp_path / "lines").write_bytes(b"\x80" + os.urandom(length))
        with pytest.raises(InputError):
            read_lines(tmp_path / "lines", Line, "thing")


def test_a_folder_and_a_file_that_cannot_be_opened_are_errors_of_ours(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="thing must be a file, is a folder"):
        read_lines(tmp_path, Line, "thing")
    with (
        pytest.raises(InputError, match=r"thing must be readable, is not \(Permission denied\)"),
        reading("thing", "x"),
    ):
        raise PermissionError(13, "Permission denied")
