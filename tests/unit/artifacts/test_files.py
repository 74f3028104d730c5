import errno
import os
from pathlib import Path

import pytest

from steelrail.artifacts.cost import CategoryCost
from steelrail.artifacts.fabric import FabricReport
from steelrail.artifacts.files import (
    Artifact,
    append_line,
    on_results,
    put_whole,
    read_artifact,
    require_results_place,
    takes_bytes,
    write_artifact,
    write_whole,
)
from steelrail.artifacts.train import TrainRecord
from steelrail.config.load import load_run
from steelrail.errors import ConfigError, FullError, InputError


def test_an_artifact_comes_back_as_it_went(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "cost.json"
    write_artifact(path, CategoryCost(gpu_seconds=1.5, micro_usd=3))
    assert CategoryCost(gpu_seconds=1.5, micro_usd=3) == read_artifact(path, CategoryCost)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_whole(path, b"old")
    with pytest.raises(TypeError):
        write_whole(path, "not bytes")  # type: ignore[arg-type]
    assert (b"old", [path]) == (path.read_bytes(), list(tmp_path.iterdir()))


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"gpu_seconds": 1}', b'{"gpu_seconds": 1, "micro_usd": 2, "x": 3}', b"\xff"]
)
def test_a_torn_or_foreign_artifact_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match="CategoryCost must be as it was written"):
        read_artifact(path, CategoryCost)


@pytest.mark.parametrize(("kind", "command"), [(FabricReport, "fabric"), (TrainRecord, "train")])
def test_a_missing_artifact_names_its_command_as_the_remedy(tmp_path: Path, kind: type[Artifact], command: str) -> None:
    with pytest.raises(InputError, match=rf"must be there, is missing \(.*\): run steelrail {command}$"):
        read_artifact(tmp_path / "a.json", kind)


def test_a_folder_in_the_place_of_an_artifact_is_refused_to_reader_and_writer(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    with pytest.raises(InputError, match=r"CategoryCost must be a file, is a folder \(.*a.json\): move it away"):
        read_artifact(tmp_path / "a.json", CategoryCost)
    with pytest.raises(InputError, match=r"must be a file, is a folder \(.*a.json\): move it away"):
        write_artifact(tmp_path / "a.json", CategoryCost(gpu_seconds=1.5, micro_usd=3))


def test_what_is_wrong_with_an_artifact_is_told_in_our_own_words(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"gpu_seconds": 1, "micro_usd": "x"}')
    with pytest.raises(InputError, match=r"is damaged \(micro_usd must be a whole number, is 'x'\)"):
        read_artifact(tmp_path / "a.json", CategoryCost)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_file_system_is_one_message_of_exit_code_6(tmp_path: Path, number: int) -> None:
    with pytest.raises(FullError) as caught, on_results(tmp_path):
        raise OSError(number, "full")
    assert 6 == caught.value.exit_code
    assert (
        f"file system of the results folder must be able to take more bytes, is full ({tmp_path}): "
        "free space there, or have the quota raised, and run the same command again"
    ) == str(caught.value)


def test_what_else_an_operating_system_says_is_not_called_full(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), on_results(tmp_path):
        raise PermissionError(errno.EACCES, "no")


def test_a_file_that_could_not_be_written_for_want_of_space_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole(tmp_path / "a.json", b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FullError):
        write_whole(tmp_path / "a.json", b"new")
    assert [b"old"] == [path.read_bytes() for path in tmp_path.iterdir()]
    # On NVMe it is for ``on_disk`` to say what is full.
    with pytest.raises(OSError, match="full"):
        put_whole(tmp_path / "a.json", b"new")
    assert not takes_bytes(tmp_path)


def test_a_file_system_with_room_takes_bytes_and_keeps_none_of_them(tmp_path: Path) -> None:
    assert takes_bytes(tmp_path)
    assert [] == list(tmp_path.iterdir())


def test_a_line_is_never_joined_to_what_a_killed_writer_left(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lines"
    append_line(path, b"one")
    with path.open("ab") as file:
        file.write(b"to")
    append_line(path, b"three")
    assert b"one\nto\nthree\n" == path.read_bytes()


def test_a_line_that_a_full_file_system_does_not_take_is_an_error() -> None:
    with pytest.raises(FullError):
        append_line(Path("/dev/full"), b"line")


@pytest.mark.parametrize("results", ["file", "file/below", "file/below/it", "link"])
def test_results_that_cannot_lie_where_they_shall_are_refused_before_anything_is_made(
    tmp_path: Path, results: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    demo = load_run("config/demo.yaml")
    with pytest.raises(ConfigError, match="results folder must be a folder, is not one"):
        require_results_place(demo.model_copy(update={"results": str(tmp_path / results)}))
    require_results_place(demo.model_copy(update={"results": str(tmp_path / "not" / "there")}))
    assert [tmp_path / "file", tmp_path / "link"] == sorted(tmp_path.iterdir())
