from pathlib import Path

import pytest

from steelrail.artifacts import events
from steelrail.artifacts.events import Event, EventWriter, parse_event, read_events
from steelrail.errors import FullError, InputError


def test_events_come_back_in_order_and_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events" / "a.jsonl"
    times = iter([1.0, 2.0])
    writer = EventWriter(path, attempt=1, rank=2, host="n1", clock=lambda: next(times))
    writer.enter("staging")
    writer.write("step", step=7, start=1.0, seconds={"data_wait": 0.25}, tokens=8)
    writer.close()
    with path.open("a") as file:
        file.write('{"time": 3.0, "ki')
    assert [
        Event(1.0, "enter", 1, 2, "n1", {"category": "staging"}),
        Event(2.0, "step", 1, 2, "n1", {"step": 7, "start": 1.0, "seconds": {"data_wait": 0.25}, "tokens": 8}),
    ] == list(read_events(path))


def test_a_torn_end_is_cut_before_more_is_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    first = EventWriter(path, attempt=1, rank=0, host="n1", clock=lambda: 1.0)
    first.write("note", text="kept")
    first.close()
    with path.open("a") as file:
        file.write('{"time": 2.0, "ki')
    second = EventWriter(path, attempt=2, rank=0, host="n2", clock=lambda: 3.0)
    second.write("note", text="after")
    second.close()
    assert ["kept", "after"] == [event.data["text"] for event in read_events(path)]


def reopened(path: Path) -> bytes:
    """Open the file for more, as the next writer does, and return what is then there."""
    EventWriter(path, attempt=2, rank=0, host="n2", clock=lambda: 3.0).close()
    return path.read_bytes()


BLOCK = events._BLOCK_BYTES
TORN = (1, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7)


@pytest.mark.parametrize("torn", TORN)
@pytest.mark.parametrize("whole", [b"", b"{}\n", b"x" * (2 * BLOCK) + b"\n{}\n"])
def test_a_torn_end_of_any_length_is_cut_and_nothing_else(tmp_path: Path, whole: bytes, torn: int) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(whole + b"y" * torn)
    assert whole == reopened(path)


@pytest.mark.parametrize("whole", [b"", b"{}\n", b"x" * BLOCK + b"\n", b"x" * (BLOCK - 1) + b"\n"])
def test_a_file_that_ends_in_a_whole_line_is_left_as_it_is(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(whole)
    assert whole == reopened(path)


def test_only_the_end_of_a_large_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with path.open("wb") as file:
        file.truncate(2**36)  # a hole: reading it whole would take 64 GiB of memory
        file.seek(2**36)
        file.write(b"\n{}\n{torn")
    EventWriter(path, attempt=2, rank=0, host="n2", clock=lambda: 3.0).close()
    assert 2**36 + len(b"\n{}\n") == path.stat().st_size


def test_a_full_file_system_is_named_whatever_is_called(tmp_path: Path) -> None:
    full = tmp_path / "full.jsonl"
    full.symlink_to("/dev/full")
    writer = EventWriter(full, attempt=1, rank=0, host="n1", clock=lambda: 1.0)
    for act in (lambda: writer.write("note", text="kept"), writer.close):
        with pytest.raises(FullError, match="file system of the results folder must be able to take more bytes"):
            act()


@pytest.mark.parametrize("line", [b"", b"{}", b"5", b"[]", b'{"time": 1.0', b"\xff", b"\0\0"])
def test_a_damaged_line_is_named_by_file_and_number_unless_it_is_a_torn_last_one(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "a.jsonl"
    writer = EventWriter(path, attempt=1, rank=2, host="n1", clock=lambda: 1.0)
    writer.write("note", text="whole")
    writer.close()
    whole = path.read_bytes()
    path.write_bytes(whole + line + b"\n" + whole)
    with pytest.raises(InputError, match=rf"event must be as it was written, is damaged .*{path}, line 2\)"):
        list(read_events(path))
    path.write_bytes(whole + line)
    assert ["whole"] == [event.data["text"] for event in read_events(path)]


@pytest.mark.parametrize(
    "line",
    [
        b'{"time":"x","kind":"end","attempt":1,"rank":0,"host":"n","exit_code":0,"reason":""}\n',
        b'{"time":1,"kind":"step","attempt":1,"rank":0,"host":"n"}\n',
        b"[]\n",
        b"\xff\n",
    ],
)
def test_an_event_without_what_readers_count_on_is_damaged(line: bytes) -> None:
    with pytest.raises(InputError, match="event must be as it was written, is damaged"):
        parse_event(line, "x")
