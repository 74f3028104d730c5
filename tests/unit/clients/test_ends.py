import signal
import subprocess

import pytest

from steelrail.clients import ends
from steelrail.clients.ends import ends_file, merge_ends, read_ends, srun_file, write_end
from steelrail.formats.srun import TaskEnd

KILLED = TaskEnd(5, "node3", "Killed", None)


def test_a_rank_is_named_by_its_node_and_nodes_come_in_sruns_order():
    gone = TaskEnd(0, "node1", "Exited with exit code 1", 1)
    said = [TaskEnd(2, "node3", "Exited with exit code 137", 137), TaskEnd(0, "node1", "Exited with exit code 1", 1)]
    assert merge_ends({0: (gone,), 2: (KILLED,)}, said, 2) == (KILLED, gone)


def test_the_first_rank_stands_for_a_node_whose_process_said_nothing():
    (end,) = merge_ends({}, [TaskEnd(2, "node3", "Killed", None)], 16)
    assert (end.rank, end.host, end.killed) == (32, "node3", True)


def test_ranks_that_saved_and_left_have_not_ended_badly():
    for code in (75, 76):
        assert merge_ends({}, [TaskEnd(2, "node3", f"Exited with exit code {code}", code)], 2) == ()


def test_memory_that_ran_out_on_a_node_is_why_its_rank_was_killed():
    said = [TaskEnd(2, "node3", "Out Of Memory", None)]
    (end,) = merge_ends({2: (KILLED,)}, said, 2)
    assert (end.rank, end.out_of_memory) == (5, True)


def test_what_was_written_is_read_back_and_a_torn_line_is_not(tmp_path):
    log = tmp_path / "attempt-0001.log"
    write_end(ends_file(log, 2), KILLED)
    with ends_file(log, 2).open("a") as file:
        file.write('{"rank": 4, "ho')
    write_end(ends_file(tmp_path / "attempt-0002.log", 0), KILLED)
    srun_file(log).write_text("srun: error: node3: task 2: Exited with exit code 137\n")
    assert read_ends(log, 2) == (KILLED,)


def test_nobody_has_ended_before_anyone_did(tmp_path):
    assert read_ends(tmp_path / "attempt-0001.log", 2) == ()


@pytest.mark.parametrize(
    ("number", "oom_kills", "said"),
    [
        (signal.SIGKILL, 0, "srun was killed by signal 9 (Killed), not by the kernel for want of memory"),
        (
            signal.SIGKILL,
            2,
            "srun was killed by signal 9 (Killed): out of memory, it seems, as the kernel killed 2 for that on this "
            "host meanwhile",
        ),
        (signal.SIGTERM, 2, "srun was killed by signal 15 (Terminated)"),
    ],
)
def test_who_killed_what_starts_the_ranks_is_told_as_far_as_it_is_known(monkeypatch, number, oom_kills, said):
    started = subprocess.Popen(["sleep", "60"])
    starter = ends.Starter("srun", started, oom_kills=7)
    assert (starter.exit_code(), starter.killed()) == (None, None)
    started.send_signal(number)
    started.wait()
    monkeypatch.setattr(ends, "oom_kills", lambda: 7 + oom_kills)
    assert (starter.exit_code(), starter.killed()) == (128 + number, said)


def test_what_ended_by_itself_was_not_killed():
    started = subprocess.Popen(["false"])
    started.wait()
    assert (ends.Starter("srun", started).exit_code(), ends.Starter("srun", started).killed()) == (1, None)
