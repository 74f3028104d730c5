import subprocess
import sys
import time

import pytest

from steelrail.artifacts.trainer import EXIT_ERROR, EXIT_FULL, Heartbeat, read_heartbeat
from steelrail.launch.pulse import Pulse, whereabouts

RANK = """
import sys, time
from pathlib import Path
from steelrail.launch.pulse import Pulse
pulse = Pulse(Path(sys.argv[1]), int(sys.argv[2]), 3, "node1")
pulse.beat(7, "step")
pulse.start()
time.sleep(60)
"""


@pytest.fixture
def rank(tmp_path):
    started = []

    def start(attempt):
        path = tmp_path / "heartbeats" / "rank-00003.json"
        started.append(subprocess.Popen([sys.executable, "-c", RANK, str(path), str(attempt)]))
        deadline = time.monotonic() + 30
        while (beat := read_heartbeat(path)) is None or beat.pid != started[-1].pid:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return started[-1], path

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_heartbeat_says_who_where_and_how_far(tmp_path):
    path = tmp_path / "heartbeats" / "rank-00003.json"
    pulse = Pulse(path, 2, 3, "node1")
    pulse.beat(7, "step")
    pulse.start()
    beat = read_heartbeat(path)
    assert (beat.attempt, beat.rank, beat.host, beat.step, beat.doing, beat.progress) == (2, 3, "node1", 7, "step", 1)


def test_the_heartbeat_goes_on_while_the_main_thread_is_busy(rank):
    _, path = rank(1)
    first = read_heartbeat(path).time
    time.sleep(2.5)
    assert read_heartbeat(path).time > first + 1


def test_a_rank_left_over_on_a_node_that_was_cut_off_ends_when_a_newer_attempt_lives(rank):
    old, _ = rank(1)
    rank(2)
    assert old.wait(10) == EXIT_ERROR


def test_a_newer_attempt_is_not_ended_by_an_older_heartbeat(rank, tmp_path):
    path = tmp_path / "heartbeats" / "rank-00003.json"
    path.parent.mkdir()
    Heartbeat(1, 3, "node1", 1, 0.0, 0, None, "step").write(path)
    new, _ = rank(2)
    time.sleep(2.2)
    assert new.poll() is None


def test_where_a_thread_is_and_whether_it_waits_for_others():
    assert whereabouts(sys._getframe()) == ("test_pulse.test_where_a_thread_is_and_whether_it_waits_for_others", False)
    scope = {}
    exec(
        compile("import sys\ndef all_reduce():\n    return sys._getframe()\n", "/x/torch/distributed/c10d.py", "exec"),
        scope,
    )
    assert whereabouts(scope["all_reduce"]()) == ("c10d.all_reduce", True)
    assert whereabouts(None) == ("", False)


def test_the_gpu_is_asked_what_it_waits_in_only_once_a_rank_stands_still(tmp_path):
    path = tmp_path / "heartbeats" / "rank-00000.json"
    pulse, asked = Pulse(path, 1, 0, "node1"), []
    pulse.pending = lambda: asked.append(1) or "all_gather 7 of default_pg"
    for step in range(5):
        pulse.beat(step, "step")
        pulse._write()
    assert (asked, read_heartbeat(path).collective) == ([], "")
    for _ in range(3):
        pulse._write()
    beat = read_heartbeat(path)
    assert (len(asked), beat.collective, beat.waits) == (1, "all_gather 7 of default_pg", True)
    pulse.beat(5, "step")
    pulse._write()
    assert read_heartbeat(path).collective == ""


def test_a_rank_whose_sign_of_life_is_not_taken_ends_before_it_would_count_as_hung(rank):
    one, path = rank(1)
    path.with_suffix(f".{one.pid}.tmp").symlink_to("/dev/full")
    assert one.wait(10) == EXIT_FULL
