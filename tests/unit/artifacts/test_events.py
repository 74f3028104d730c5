from pathlib import Path

from steelrail.artifacts.events import Event, EventWriter, read_events


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
