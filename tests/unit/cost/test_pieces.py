"""Segments cut into pieces: nodes share a segment, ranks share a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from synthetic import attempt

from steelrail.artifacts.events import Event
from steelrail.artifacts.train import Attempt, Ending
from steelrail.cost.pieces import Cut, Reports, coarse, cut_training, ranks_on
from steelrail.cost.segments import Segment
from steelrail.cost.timeline import Span


def segment(
    nodes: Sequence[str] = ("node1", "node2"), start: float = 0.0, end: float = 100.0, state: str = "COMPLETED"
) -> Segment:
    return Segment("train", "7", 0, state, tuple(nodes), start, end, 16 * len(nodes), 4)


def reports(hosts: dict[int, str], *events: Event) -> Reports:
    return Reports(hosts, lambda rank: events)


def event(time: float, kind: Any, **data: object) -> Event:
    return Event(time, kind, 1, 0, "node1", data)


def cut(one: Segment, *attempts: Attempt, said: Reports | None = None) -> Cut:
    return cut_training([one], attempts, lambda _: said or reports({}), 0.0)[0]


def parts(found: Cut) -> dict[str, float]:
    sums: dict[str, float] = {}
    for piece in found.pieces:
        sums[piece.category] = round(sums.get(piece.category, 0.0) + piece.part, 6)
    return sums


ON_TWO = {"nodes": ("node1", "node2")}


def test_a_training_segment_without_an_attempt_is_lost() -> None:
    assert parts(cut(segment())) == {"lost": 100.0}


def test_gaps_before_and_between_attempts_are_startup_and_the_rest_is_idle() -> None:
    said = reports({0: "node1", 1: "node2"}, event(0, "enter", category="staging"), event(90, "end", exit_code=0))
    found = cut(segment(), attempt(1, 10, 30, **ON_TWO), attempt(2, 40, 90, **ON_TWO), said=said)
    assert parts(found) == {"startup": 20.0, "staging": 70.0, "idle": 10.0}


def test_a_spare_node_is_idle_from_start_to_end() -> None:
    found = cut(segment(["node1", "node2", "node3", "node4"]), attempt(1, 10, 100, nodes=("node1", "node2", "node4")))
    idle = sum(piece.part for piece in found.pieces if piece.host == "node3" and piece.category == "idle")
    assert idle == 25.0


def test_a_lost_node_costs_nothing_in_the_segment_without_it() -> None:
    first, second = segment(("node1", "node3"), 0, 50, "RESIZING"), segment(("node1",), 50, 100)
    second = Segment("train", "7", 1, "COMPLETED", ("node1",), 50, 100, 16, 4)
    cuts = cut_training(
        [first, second], [attempt(1, 0, 60, nodes=("node1", "node3"))], lambda _: reports({0: "node1", 1: "node3"}), 0.0
    )
    assert [sum(piece.part for piece in one.pieces) for one in cuts] == pytest.approx([50.0, 50.0])
    assert {piece.host for piece in cuts[1].pieces} == {"node1"}


def test_silent_ranks_of_an_attempt_that_came_to_nothing_are_lost() -> None:
    assert parts(cut(segment(), attempt(1, 0, 100, **ON_TWO))) == {"lost": 100.0}


@pytest.mark.parametrize("changes", [{"last_step": 5, "first_step": 1}, {"ending": Ending.DONE}])
def test_silent_ranks_of_an_attempt_that_did_something_are_unattributed(changes: dict[str, object]) -> None:
    assert parts(cut(segment(), attempt(1, 0, 100, **ON_TWO, **changes))) == {"unattributed": 100.0}


def test_ranks_share_their_node_alike() -> None:
    said = reports(
        {rank: f"node{rank // 2 + 1}" for rank in range(4)},
        event(0, "enter", category="staging"),
        event(100, "end", exit_code=0),
    )
    found = cut(segment(), attempt(1, 0, 100, **ON_TWO), said=said)
    assert [(piece.rank, piece.host, piece.part) for piece in found.pieces] == [
        (0, "node1", 25.0),
        (1, "node1", 25.0),
        (2, "node2", 25.0),
        (3, "node2", 25.0),
    ]


def test_ranks_are_where_they_say_whatever_their_number() -> None:
    said = Reports({0: "node2", 1: "node1.cluster.local"}, lambda rank: ())
    assert ranks_on(attempt(1, 0, 1, **ON_TWO), said) == {"node1": [1], "node2": [0]}


def test_ranks_on_an_unknown_host_are_laid_out_in_order() -> None:
    said = Reports({0: "localhost", 2: "localhost", 3: "localhost"}, lambda rank: ())
    assert ranks_on(attempt(1, 0, 1, **ON_TWO), said) == {"node1": [0, 1], "node2": [2, 3]}


def test_steps_of_an_earlier_attempt_are_replayed_in_a_later_one() -> None:
    def said(one: Attempt) -> Reports:
        last = 10 if one.attempt == 1 else 12
        made = [
            event(one.started + 1 + n, "step", step=last - 4 + n, start=one.started + n, seconds={}) for n in range(5)
        ]
        return reports({0: "node1"}, *made, event(one.started + 5, "end", exit_code=0))

    attempts = [attempt(number, start, start + 5, nodes=("node1",)) for number, start in ((1, 0), (2, 5))]
    (found,) = cut_training([segment(("node1",), 0, 10)], attempts, said, 0.0)
    assert parts(found) == {"productive": 7.0, "replayed": 3.0}


def test_coarse_spans_take_time_from_no_category_and_join() -> None:
    fine = [
        Span(at + begin, at + end, name)
        for at in (0, 5)
        for begin, end, name in ((0, 1, "productive"), (1, 5, "communication"))
    ]
    assert coarse(fine, 5.0) == [Span(0, 4, "communication"), Span(4, 6, "productive"), Span(6, 10, "communication")]
