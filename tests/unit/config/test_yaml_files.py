import os
from pathlib import Path

import pytest

from steelrail.config.yaml_files import parse_yaml, read_yaml_text
from steelrail.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: a\nb: 1\nname: c\n", "file's name must be given once, is given on lines 1 and 3 (x): remove"),
        ('a:\n  b: 1\n  "b": 2\n', "file's a.b must be given once, is given on lines 2 and 3 (x)"),
        ("a: [{b: 1, b: 1}]", "file's a.0.b must be given once, is given on lines 1 and 1 (x)"),
    ],
)
def test_a_key_given_twice_in_one_mapping_is_refused_with_its_lines(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_yaml(text, "file", "x")
    assert said in str(raised.value)


def test_a_key_may_stand_in_many_mappings_and_replace_one_merged() -> None:
    text = "a: &a {k: 1}\nb: &b {<<: *a, k: 2}\nc: {<<: *b, k: 3}\nd: *a\n"
    assert parse_yaml(text, "file", "x") == {"a": {"k": 1}, "b": {"k": 2}, "c": {"k": 3}, "d": {"k": 1}}


@pytest.mark.parametrize("text", ["a: 2026-13-40", "a: !!bool x", "a: !!int ''", "a: !!timestamp x", "a: !!float x"])
def test_a_value_that_is_not_of_its_tag_ends_in_a_clear_error(text: str) -> None:
    with pytest.raises(ConfigError, match="file must be valid YAML, is not"):
        parse_yaml(text, "file", "x")


def test_a_fault_of_yaml_is_told_by_its_line_and_shows_no_value() -> None:
    with pytest.raises(ConfigError, match="line 2") as raised:
        parse_yaml("a: 1\nendpoint: http://u:CANARY@h: 2\n", "file", "x")
    assert "CANARY" not in str(raised.value)


def test_a_pipe_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="file must be a regular file, is a pipe or device"):
        read_yaml_text(tmp_path / "pipe", "file")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="file must be a regular file, is a folder"):
        read_yaml_text(tmp_path, "file")


def test_bytes_that_are_no_utf8_are_told_by_their_place(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"ab\xff")
    with pytest.raises(ConfigError, match=r"is not \(no UTF-8 at byte 2\)"):
        read_yaml_text(tmp_path / "x", "file")
