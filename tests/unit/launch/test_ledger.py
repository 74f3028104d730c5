import json

import pytest
from rundir import entry

from steelrail.artifacts.events import EventWriter
from steelrail.artifacts.train import Ending
from steelrail.artifacts.trainer import RunFolder
from steelrail.errors import InputError
from steelrail.launch import ledger
from steelrail.launch.endings import Verdict
from steelrail.launch.policy import Action, Past


def test_an_attempt_is_read_back_with_its_step_and_ending(tmp_path):
    folder = RunFolder(tmp_path)
    ledger.write_start(folder, "node1", entry())
    ledger.write_step_id(folder, "node1", 1, "15.0")
    verdict = Verdict(Ending.JOB_ERROR, "why", 1, "node2", 3, "ValueError: x", 7, "trace")
    ledger.write_end(folder, "node1", 1, verdict, True, Action.RESTART)
    (read,) = ledger.read(folder)
    assert (read.job_id, read.step_id, read.nodes, read.epoch) == ("15", "15.0", ("node1", "node2"), 1)
    assert (read.ending, read.reason, read.action) == (Ending.JOB_ERROR, "why", Action.RESTART)
    assert read.past == Past(Ending.JOB_ERROR, True, 1, "node2", "ValueError: x", 7)


def test_a_host_that_was_silent_is_so_for_the_next_segments_policy_too(tmp_path):
    folder = RunFolder(tmp_path)
    ledger.write_start(folder, "node1", entry())
    verdict = Verdict(Ending.STALLED, "why", culprit="node2", mark="m", host_silent=True)
    ledger.write_end(folder, "node1", 1, verdict, False, Action.RESTART)
    (read,) = ledger.read(folder)
    assert read.past == ledger.past_of(verdict, False) == Past(Ending.STALLED, False, None, "node2", "m", None, True)


def test_an_end_of_before_silent_hosts_were_kept_is_read(tmp_path):
    folder = RunFolder(tmp_path)
    ledger.write_start(folder, "node1", entry())
    ledger.write_end(folder, "node1", 1, Verdict(Ending.STALLED, "why", culprit="node2"), True, Action.RESTART)
    start, end = folder.ledger.read_text().splitlines()
    old = {name: value for name, value in json.loads(end).items() if name != "host_silent"}
    folder.ledger.write_text(f"{start}\n{json.dumps(old)}\n")
    (read,) = ledger.read(folder)
    assert read.past == Past(Ending.STALLED, True, culprit="node2")


def test_an_attempt_without_an_end_is_open(tmp_path):
    folder = RunFolder(tmp_path)
    ledger.write_start(folder, "node1", entry())
    (read,) = ledger.read(folder)
    assert (read.ended, read.ending, read.action) == (None, None, None)


def test_a_supervisor_that_wakes_up_late_does_not_change_an_ending(tmp_path):
    folder = RunFolder(tmp_path)
    ledger.write_start(folder, "node1", entry())
    ledger.write_end(folder, "head", 1, Verdict(Ending.NODE_FAILURE, "first"), False, None, ended=123.0)
    ledger.write_end(folder, "node1", 1, Verdict(Ending.DONE, "late"), True, Action.FINISH)
    (read,) = ledger.read(folder)
    assert (read.ending, read.ended) == (Ending.NODE_FAILURE, 123.0)


def test_a_torn_last_line_is_left_out(tmp_path):
    folder = RunFolder(tmp_path)
    ledger.write_start(folder, "node1", entry())
    with folder.ledger.open("a") as file:
        file.write('{"time": 1, "kind": "attempt_end", "att')
    assert len(ledger.read(folder)) == 1


def test_a_folder_in_which_nothing_ran_has_no_attempts(tmp_path):
    assert ledger.read(RunFolder(tmp_path)) == ()


def test_an_empty_ledger_has_no_attempts(tmp_path):
    RunFolder(tmp_path).ledger.touch()
    assert ledger.read(RunFolder(tmp_path)) == ()


@pytest.mark.parametrize(
    "damage", [("attempt_start", {"job_id": "15"}), ("attempt_end", {"ending": "nonsense", "ended": None})]
)
def test_a_ledger_that_no_supervisor_wrote_is_named(tmp_path, damage):
    folder = RunFolder(tmp_path)
    ledger.write_start(folder, "node1", entry(1))
    writer = EventWriter(folder.ledger, 1 if damage[0] == "attempt_end" else 2, -1, "node1", lambda: 1.0)
    writer.write(damage[0], **damage[1])
    writer.close()
    with pytest.raises(InputError, match="ledger must be as the supervisor wrote it, is damaged"):
        ledger.read(folder)
