import time

import pytest

from steelrail.artifacts.events import EventWriter, read_events
from steelrail.artifacts.requests import Requests
from steelrail.clients.store_requests import ANSWERED
from steelrail.errors import FullError
from steelrail.launch import tally
from steelrail.launch.tally import Tally


@pytest.fixture
def events(tmp_path):
    ANSWERED.take()
    return EventWriter(tmp_path / "events.jsonl", 1, 0, "node1", lambda: 1.0)


def asked(count):
    for _ in range(count):
        ANSWERED.heard("response-received.s3.GetObject", {"status_code": 200})


def told(tmp_path):
    events = [event for event in read_events(tmp_path / "events.jsonl") if event.kind == "requests"]
    return [Requests.model_validate(event.data) for event in events]


def test_a_rank_tells_at_its_end_what_it_asked_even_if_that_is_nothing(tmp_path, events):
    telling = Tally(events)
    telling.start()
    asked(2)
    deadline = time.monotonic() + 10
    while not told(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    telling.close()
    assert told(tmp_path) == [Requests(get=2), Requests()]


def test_a_rank_tells_now_and_then_only_what_is_new(tmp_path, events, monkeypatch):
    monkeypatch.setattr(tally, "TELL_SECONDS", 0.01)
    asked(3)
    telling = Tally(events)
    telling.start()
    while not told(tmp_path):
        time.sleep(0.01)
    asked(2)
    telling.close()
    assert told(tmp_path)[0] == Requests(get=3)
    assert sum(told(tmp_path), Requests()) == Requests(get=5)


def test_nothing_is_told_after_the_end(tmp_path, events, monkeypatch):
    monkeypatch.setattr(tally, "TELL_SECONDS", 0.01)
    telling = Tally(events)
    telling.start()
    telling.close()
    events.close()
    asked(1)
    telling._thread.join(1.0)
    assert not telling._thread.is_alive()
    assert told(tmp_path) == [Requests()]


def test_a_full_file_system_does_not_end_the_telling(tmp_path, events, monkeypatch):
    monkeypatch.setattr(tally, "TELL_SECONDS", 0.05)
    tried = []

    def full(kind, **data):
        tried.append(kind)
        raise FullError("full")

    with monkeypatch.context() as patch:
        patch.setattr(events, "write", full)
        telling = Tally(events)
        telling.start()
        asked(3)
        deadline = time.monotonic() + 10
        while not tried:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    asked(2)
    deadline = time.monotonic() + 10
    while not told(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    telling.close()
    assert told(tmp_path) == [Requests(get=2), Requests()]
