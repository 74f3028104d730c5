import json

from rundir import rank_did

from steelrail.artifacts.events import EventWriter
from steelrail.artifacts.trainer import Heartbeat, RunFolder
from steelrail.launch import traces


def test_steps_durable_and_resume_of_an_attempt_are_read_from_its_first_rank(tmp_path):
    folder = RunFolder(tmp_path)
    rank_did(folder, 2, [11, 12, 13], durable=[12], resumed=10)
    steps = traces.steps_of(folder, 2)
    assert (steps.resumed_from, steps.first_step, steps.last_step, steps.durable) == (10, 11, 13, 12)


def test_an_attempt_without_events_did_nothing(tmp_path):
    assert traces.steps_of(RunFolder(tmp_path), 1) == traces.Steps(None, None, None, None, None)


def test_the_newest_durable_step_is_that_of_the_attempts_before(tmp_path):
    folder = RunFolder(tmp_path)
    rank_did(folder, 1, [1, 2], durable=[2])
    rank_did(folder, 2, [3, 4], durable=[4])
    assert [traces.newest_durable(folder, attempt) for attempt in (1, 2, 3)] == [-1, 2, 4]


def test_the_last_steps_of_a_long_run_are_read_from_the_end(tmp_path):
    folder = RunFolder(tmp_path)
    rank_did(folder, 1, range(1, 3000))
    with folder.events(1, 0).open("a") as file:
        file.write('{"time": 1, "kind": "st')
    steps = [event.data["step"] for event in traces.newest_steps(folder, 1, 5)]
    assert steps == [2995, 2996, 2997, 2998, 2999]


def test_the_last_steps_of_a_short_run_are_all_of_them(tmp_path):
    folder = RunFolder(tmp_path)
    rank_did(folder, 1, [1, 2])
    assert [event.data["step"] for event in traces.newest_steps(folder, 1, 5)] == [1, 2]
    assert traces.newest_steps(folder, 9, 5) == []


def test_heartbeats_of_other_attempts_are_left_out(tmp_path):
    folder = RunFolder(tmp_path)
    folder.heartbeat(0).parent.mkdir()
    for rank, attempt in ((0, 1), (1, 2)):
        Heartbeat(attempt, rank, "h", 1, 0.0, 0, None, "x").write(folder.heartbeat(rank))
    assert set(traces.heartbeats(folder, 2, 4)) == {1}


def test_attempts_that_left_events_are_known_without_a_ledger(tmp_path):
    folder = RunFolder(tmp_path)
    assert traces.numbers(folder) == []
    rank_did(folder, 2, [1])
    rank_did(folder, 7, [2])
    assert sorted(traces.numbers(folder)) == [2, 7]


def rolled_back(folder, attempt, at_most):
    event = {"time": 50.0, "kind": "rolled_back", "attempt": attempt, "rank": 0, "host": "node1"}
    with folder.events(attempt, 0).open("a") as file:
        file.write(json.dumps({**event, "step": 9, "at_most": at_most, "first": 9, "why": "loss is nan"}) + "\n")


def test_what_was_rolled_back_is_no_longer_the_newest_durable_step(tmp_path):
    folder = RunFolder(tmp_path)
    rank_did(folder, 1, [1, 2], durable=[2, 5])
    rank_did(folder, 2, [3, 4], durable=[8])
    rolled_back(folder, 2, 6)
    rank_did(folder, 2, [], durable=[8])  # its upload was over after that
    rank_did(folder, 3, [6, 7], durable=[7])
    assert [traces.newest_durable(folder, attempt) for attempt in (2, 3, 4)] == [5, 5, 7]
    rolled_back(folder, 3, 1)
    assert traces.newest_durable(folder, 4) == -1
    assert [traces.rolled_back(folder, attempt) for attempt in (1, 2, 9)] == [None, "loss is nan", None]


def test_saves_that_only_nvme_had_are_not_missed_after_a_roll_back(tmp_path):
    folder = RunFolder(tmp_path)
    events = EventWriter(folder.events(1, 0), 1, 0, "node1", lambda: 1.0)
    for step, where in ((5, "store"), (10, "nvme"), (15, "nvme"), (20, "nvme")):
        events.write("durable", step=step, where=where, bytes=1, seconds=0.1)
    events.close()
    assert traces.newest_durable(folder, 2) == 20
    rolled_back(folder, 1, 16)
    assert traces.newest_durable(folder, 2) == 5
