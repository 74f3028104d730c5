import pytest
from rundir import attempt, rank_did

from steelrail.artifacts.train import Ending
from steelrail.artifacts.trainer import RunFolder
from steelrail.clients.process import Completed
from steelrail.clients.slurm import Slurm
from steelrail.launch import ledger
from steelrail.launch.segments import close_open


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def accounts(*rows):
    """A door whose sacct knows these (state, start, end) of job 15."""
    lines = "".join(
        f"15|{state}|0:0|0:0|1|{start}|{end}|1|2|node[1-2]|billing=1|gpu|me|None|x|c\n" for state, start, end in rows
    )
    return Slurm(lambda argv, timeout, env: Completed(tuple(argv), 0, lines, ""), retry_seconds=0.0)


def broken():
    return Slurm(lambda argv, timeout, env: Completed(tuple(argv), 1, "", "sacct: error: broken"), retry_seconds=0.0)


def endings(folder):
    return [entry.ending for entry in ledger.read(folder)]


def test_the_next_segment_closes_the_attempt_that_died_with_its_node(folder):
    attempt(folder, 1)
    close_open(folder, accounts(("NODE_FAIL", 1, 9_999_999_999), ("RUNNING", 9_999_999_999, "Unknown")), "n", ("15", 1))
    (entry,) = ledger.read(folder)
    assert (entry.ending, entry.ended) == (Ending.NODE_FAILURE, 9_999_999_999)


def test_ones_own_running_attempt_is_left_alone(folder):
    attempt(folder, 1)
    close_open(folder, accounts(("RUNNING", 1, "Unknown")), "n", ("15", 0))
    assert endings(folder) == [None]


def test_accounts_that_lag_are_made_up_for_by_the_later_segment(folder):
    attempt(folder, 1)
    close_open(folder, accounts(("RUNNING", 1, "Unknown")), "n", ("15", 1))
    assert endings(folder) == [Ending.REQUEUED]


def test_accounts_that_cannot_be_read_do_not_stop_the_next_segment(folder):
    attempt(folder, 1)
    close_open(folder, broken(), "n", ("15", 1))
    assert endings(folder) == [Ending.REQUEUED]


def test_an_attempt_that_reached_a_newer_checkpoint_before_it_died_made_progress(folder):
    attempt(folder, 1)
    rank_did(folder, 1, [1, 2], durable=[2])
    close_open(folder, None, "n", None, "NODE_FAIL")
    (entry,) = ledger.read(folder)
    assert (entry.progressed, entry.ended) == (True, 1002.0)


def test_a_job_of_which_nothing_is_known_stays_open_while_it_may_still_run(folder):
    attempt(folder, 1)
    close_open(folder, accounts(("RUNNING", 1, "Unknown")), "head", None)
    assert endings(folder) == [None]
