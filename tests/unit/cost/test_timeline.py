"""Where a rank's time goes, event by event."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from steelrail.artifacts.events import Event
from steelrail.cost.timeline import Span, clip, last_step, rank_spans, step_spans


def event(time: float, kind: Any, **data: object) -> Event:
    return Event(time, kind, 1, 0, "node1", data)


def enter(time: float, category: str) -> Event:
    return event(time, "enter", category=category)


def step(number: int, start: float, time: float, **seconds: float) -> Event:
    return event(time, "step", step=number, start=start, seconds=seconds, tokens=1)


def spans(
    *events: Event, start: float = 0.0, end: float = 100.0, replayed_to: int = -1
) -> list[tuple[float, float, str]]:
    found = rank_spans(events, start, end, replayed_to, "unattributed")
    return [(one.start, one.end, one.category) for one in found]


def seconds(*events: Event, **bounds: Any) -> dict[str, float]:
    sums: dict[str, float] = {}
    for begin, end, name in spans(*events, **bounds):
        sums[name] = sums.get(name, 0.0) + end - begin
    return {name: round(value, 6) for name, value in sums.items()}


def test_time_before_the_first_event_is_startup() -> None:
    assert spans(enter(8, "staging"), event(20, "end", exit_code=0), end=20) == [(0, 8, "startup"), (8, 20, "staging")]


def test_an_open_category_lasts_until_the_next_enter() -> None:
    found = spans(enter(0, "staging"), enter(30, "restore"), event(50, "end", exit_code=0), end=50)
    assert found == [(0, 30, "staging"), (30, 50, "restore")]


def test_a_step_is_split_as_it_says_and_the_rest_trained_the_model() -> None:
    found = seconds(step(1, 0, 10, communication=2.0, data_wait=1.0), event(10, "end", exit_code=0), end=10)
    assert found == {"communication": 2.0, "data_wait": 1.0, "productive": 7.0}


def test_a_step_that_an_earlier_attempt_made_is_replayed() -> None:
    events = (step(5, 0, 10, communication=2.0), step(6, 10, 20), event(20, "end", exit_code=0))
    assert seconds(*events, end=20, replayed_to=5) == {"communication": 2.0, "replayed": 8.0, "productive": 10.0}


def test_a_word_on_requests_proves_no_progress_of_a_rank_that_was_killed() -> None:
    found = spans(enter(0, "restore"), event(10, "restore", step=1), event(60, "requests", put=1), end=100)
    assert found == [(0, 10, "restore"), (10, 100, "lost")]


def drill(start: float, time: float) -> Event:
    return event(time, "drill", where="restore", start=start, seconds=time - start)


@pytest.mark.parametrize("drills", [(drill(2, 4),), (drill(12, 14),), (drill(21, 22),), (drill(31, 39), drill(41, 45))])
def test_a_word_on_a_drill_moves_no_time(drills: tuple[Event, ...]) -> None:
    told = (
        enter(1, "restore"),
        enter(10, "productive"),
        step(1, 10, 20, data_wait=2.0),
        enter(20, "checkpoint"),
        enter(30, "productive"),
        step(2, 30, 40, communication=8.0),
    )
    for last in ((), (event(50, "end", exit_code=0),)):
        assert seconds(*told, *drills, *last) == seconds(*told, *last)


def test_a_word_on_a_drill_before_the_first_step_proves_that_its_rank_lived_in_the_open_category() -> None:
    assert spans(enter(0, "restore"), drill(10, 40)) == [(0, 40, "restore"), (40, 100, "lost")]


def test_a_heldout_loss_between_steps_trains_or_replays_with_them() -> None:
    events = (enter(0, "productive"), step(1, 0, 10), step(2, 14, 20), step(3, 26, 30), event(30, "end", exit_code=0))
    assert seconds(*events, end=30, replayed_to=1) == {"replayed": 14.0, "productive": 16.0}


def test_a_gap_between_steps_that_nobody_entered_is_unattributed() -> None:
    assert seconds(step(1, 0, 10), step(2, 13, 20), event(20, "end", exit_code=0), end=20)["unattributed"] == 3.0


def test_what_follows_the_last_word_of_a_killed_rank_is_lost() -> None:
    assert spans(enter(0, "productive"), step(1, 0, 40)) == [(0, 40, "productive"), (40, 100, "lost")]


def test_a_background_upload_does_not_prove_that_steps_went_on() -> None:
    events = (enter(0, "productive"), step(1, 0, 40), event(55, "durable", step=1, where="store", bytes=1, seconds=1))
    assert spans(*events)[-1] == (40, 100, "lost")


def test_after_a_clean_end_a_rank_is_idle() -> None:
    assert [spans(enter(0, "staging"), event(40, "end", exit_code=code))[-1] for code in (0, 75, 76, 1)] == [
        (40, 100, "idle"),
        (40, 100, "idle"),
        (40, 100, "idle"),
        (40, 100, "lost"),
    ]


def test_words_after_the_end_move_no_time() -> None:
    found = spans(enter(0, "staging"), event(40, "end", exit_code=0), event(60, "durable", step=1, where="store"))
    assert found == [(0, 40, "staging"), (40, 100, "idle")]


def test_a_rank_without_a_word_is_what_the_caller_says() -> None:
    assert spans() == [(0, 100, "unattributed")]


def test_a_step_overrides_what_was_entered_within_its_stretch() -> None:
    events = (
        enter(0, "productive"),
        enter(4, "checkpoint"),
        step(1, 2, 10, checkpoint=1.0),
        event(10, "end", exit_code=0),
    )
    assert seconds(*events, end=10) == {"productive": 9.0, "checkpoint": 1.0}


def test_a_step_never_takes_time_from_the_step_before() -> None:
    assert spans(step(1, 0, 10), step(2, 7, 20), event(20, "end", exit_code=0), end=20) == [
        (0, 10, "productive"),
        (10, 20, "productive"),
    ]


def test_parts_that_claim_more_than_the_step_share_it() -> None:
    parts = list(step_spans(0.0, 10.0, {"communication": 15.0, "data_wait": 5.0}, "productive"))
    assert [(one.category, one.seconds) for one in parts] == [("communication", 7.5), ("data_wait", 2.5)]


def test_an_unknown_category_says_nothing() -> None:
    assert spans(enter(0, "coffee"), event(10, "end", exit_code=0), end=10) == [(0, 10, "unattributed")]


def test_events_beyond_the_window_are_clipped() -> None:
    events = (enter(-5, "staging"), enter(30, "restore"), event(130, "end", exit_code=0))
    assert spans(*events) == [(0, 30, "staging"), (30, 100, "restore")]


def test_clip_keeps_what_lies_within() -> None:
    assert clip([Span(0, 10, "lost"), Span(10, 20, "idle")], 5, 12) == [Span(5, 10, "lost"), Span(10, 12, "idle")]


def test_the_last_step_is_the_highest() -> None:
    assert (last_step([step(3, 0, 1), step(4, 1, 2), enter(3, "idle")]), last_step([])) == (4, -1)


@pytest.mark.parametrize("seed", range(200))
def test_spans_cover_the_window_once_whatever_a_rank_says(seed: int) -> None:
    chance = random.Random(seed)
    names = ["startup", "productive", "checkpoint", "nonsense", "idle", "lost", "data_wait"]
    events = []
    for _ in range(chance.randrange(30)):
        time = chance.uniform(-20, 130)
        kind = chance.choice(
            ["enter", "step", "step", "note", "drill", "durable", "end"] if chance.random() < 0.1 else ["enter", "step"]
        )
        if kind == "step":
            parts = {chance.choice(names): chance.uniform(-1, 9) for _ in range(chance.randrange(3))}
            events.append(step(chance.randrange(40), time - chance.uniform(-2, 15), time, **parts))
        else:
            events.append(event(time, kind, category=chance.choice(names), exit_code=chance.choice([0, 1]), step=1))
    found = rank_spans(events, 0.0, 100.0, chance.randrange(-1, 40), "unattributed")
    edges = [found[0].start, *(one.end for one in found)]
    assert (edges[0], edges[-1]) == (0.0, 100.0)
    assert all(one.start == before.end and one.seconds > 0 for before, one in pairwise(found))
