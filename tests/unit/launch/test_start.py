from steelrail.artifacts.events import Event
from steelrail.launch.start import start_parts


def event(time, kind, **data):
    return Event(time, kind, 1, 0, "node1", data)


EVENTS = [
    event(104.0, "enter", category="startup"),
    event(104.1, "reached", what="process", since=100.4),
    event(105.0, "note", text="leaf switches: l1"),
    event(105.0, "reached", what="collective"),
    event(105.0, "enter", category="fabric_check"),
    event(106.5, "check", ok=True, detail="fit"),
    event(107.0, "enter", category="restore"),
    event(108.5, "enter", category="productive"),
    event(109.0, "enter", category="productive"),
    event(110.5, "step", step=1, start=109.5, seconds={}, tokens=1),
]


def test_the_parts_of_a_start_sum_to_the_time_of_the_first_step():
    parts = start_parts(100.0, EVENTS)
    assert list(parts) == ["srun", "load", "meet", "fabric check", "restore", "first step"]
    assert parts == {"srun": 0.4, "load": 3.7, "meet": 0.9, "fabric check": 1.5, "restore": 2.0, "first step": 2.0}
    assert abs(sum(parts.values()) - 10.5) < 1e-6


def test_an_attempt_that_ended_early_has_the_parts_it_came_to():
    assert list(start_parts(100.0, EVENTS[:4])) == ["srun", "load", "meet"]
    assert start_parts(100.0, []) == {}


def test_a_node_whose_clock_is_behind_makes_no_negative_part():
    assert start_parts(101.0, EVENTS[:2]) == {"srun": 0.0, "load": 3.1}
