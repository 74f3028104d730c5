import pytest

from steelrail.artifacts.train import Ending
from steelrail.artifacts.trainer import EXIT_FULL, EXIT_ROLLED_BACK, EXIT_SAVED
from steelrail.errors import NodeError
from steelrail.formats.srun import TaskEnd
from steelrail.launch.endings import Hang, Observed, RankFault, close, judge
from steelrail.launch.memory import DO, GPU, HOST

SAVED = dict.fromkeys(range(4), EXIT_SAVED)


def seen(**changes):
    return Observed(**{"world_size": 4, "exit_code": 1, "exits": {}, "faults": (), "task_ends": (), **changes})


def fault(rank=2, time=10.0, kind="ValueError", message="bad", step=7, code=1):
    return RankFault(rank, f"node{rank}", kind, message, step, "Traceback: ...", code, time)


def test_all_ranks_at_zero_is_done():
    assert judge(seen(exit_code=0, exits=dict.fromkeys(range(4), 0))).ending is Ending.DONE


def test_three_of_four_ranks_done_is_not_done():
    assert judge(seen(exit_code=0, exits=dict.fromkeys(range(3), 0))).ending is Ending.JOB_ERROR


def test_done_counts_even_while_the_job_is_being_preempted():
    assert judge(seen(exits=dict.fromkeys(range(4), 0), terminated=True)).ending is Ending.DONE


@pytest.mark.parametrize(
    ("changes", "ending"),
    [
        ({"asked": "stop"}, Ending.STOPPED),
        ({"asked": "budget"}, Ending.BUDGET),
        ({"asked": "walltime"}, Ending.WALLTIME),
        ({"near_limit": True}, Ending.WALLTIME),
        ({"terminated": True}, Ending.PREEMPTION),
        ({}, Ending.WALLTIME),
    ],
)
def test_saved_ranks_end_for_the_reason_they_were_told(changes, ending):
    assert judge(seen(exit_code=EXIT_SAVED, exits=SAVED, **changes)).ending is ending


def test_a_stop_that_was_not_followed_in_time_is_still_a_stop():
    verdict = judge(seen(exit_code=137, asked="stop"))
    assert verdict.ending is Ending.STOPPED
    assert "before every rank had saved" in verdict.reason


def test_the_rank_that_raised_is_named_with_its_step_and_trace():
    verdict = judge(seen(faults=[fault()]))
    assert (verdict.ending, verdict.culprit, verdict.rank, verdict.step) == (Ending.JOB_ERROR, "node2", 2, 7)
    assert verdict.reason == "rank 2 on node2 at step 7: ValueError: bad"
    assert verdict.trace.startswith("Traceback")


def test_a_step_that_slurm_ends_before_any_rank_lived_is_no_error_that_repeats():
    aborted = TaskEnd(2, "node2", "Aborted", None)
    verdict = judge(seen(task_ends=[aborted], lived=False))
    assert (verdict.ending, verdict.culprit, verdict.mark) == (Ending.JOB_ERROR, "node2", None)
    assert verdict.reason.endswith("before any rank lived")
    assert judge(seen(task_ends=[aborted])).mark == "rank killed: Aborted"
    assert judge(seen(lived=False)).mark is None
    absent = TaskEnd(2, "node2", "Exited with exit code 127", 127)
    assert judge(seen(task_ends=[absent], lived=False)).mark == "no word: Exited with exit code 127"


def test_peers_that_lost_a_connection_are_not_the_culprit():
    peer = fault(0, 9.0, "RuntimeError", "Connection closed by peer [10.0.0.3]:1234")
    assert judge(seen(faults=[peer, fault(2, 10.0)])).rank == 2


def test_a_rank_killed_without_a_word_is_the_culprit_not_those_that_noticed():
    peer = fault(0, 9.0, "RuntimeError", "Connection closed by peer [10.0.0.3]:1234")
    ends = [TaskEnd(3, "node3", "Killed", None), TaskEnd(0, "node0", "Exited with exit code 1", 1)]
    verdict = judge(seen(faults=[peer], task_ends=ends))
    assert (verdict.rank, verdict.culprit) == (3, "node3")
    assert "ended by a signal (Killed)" in verdict.reason


def test_a_rank_that_left_with_a_code_and_no_word_is_the_culprit_not_those_that_noticed():
    peer = fault(0, 9.0, "RuntimeError", "Connection closed by peer [10.0.0.3]:1234")
    ends = [TaskEnd(3, "node3", "Exited with exit code 99", 99), TaskEnd(0, "node0", "Exited with exit code 1", 1)]
    verdict = judge(seen(faults=[peer], task_ends=ends))
    assert (verdict.rank, verdict.culprit, verdict.mark) == (3, "node3", "no word: Exited with exit code 99")


def test_where_all_ranks_speak_of_peers_alone_the_first_is_named():
    peers = [fault(rank, 9.0 + rank, "RuntimeError", "Connection closed by peer") for rank in (1, 0)]
    ends = [TaskEnd(1, "node1", "Exited with exit code 1", 1), TaskEnd(3, "node3", "Terminated", None)]
    assert judge(seen(faults=peers, task_ends=ends)).rank == 0


def test_ranks_that_srun_took_down_are_not_the_culprit():
    ends = [TaskEnd(1, "node1", "Terminated", None), TaskEnd(3, "node3", "Segmentation fault", None)]
    assert judge(seen(task_ends=ends)).rank == 3


def test_a_rank_that_left_with_a_code_is_named_though_others_were_killed_after_it():
    ends = [TaskEnd(2, "node2", "Exited with exit code 97", 97), TaskEnd(4, "node3", "Killed", None)]
    assert judge(seen(task_ends=ends)).rank == 2


def test_out_of_memory_on_the_host_is_named_even_beside_a_fault():
    verdict = judge(seen(faults=[fault()], task_ends=[TaskEnd(3, "node3", "Out Of Memory", None)]))
    assert (verdict.rank, verdict.mark) == (3, HOST)
    assert verdict.reason == f"rank 3 on node3 was killed, {HOST}: Out Of Memory; {DO[HOST]}"


@pytest.mark.parametrize("which", [HOST, GPU])
def test_memory_that_ran_out_is_one_error_whatever_its_numbers_and_says_what_to_do(which):
    first, again = (judge(seen(faults=[fault(kind=which, message=f"tried to get {size}")])) for size in (20, 30))
    assert first.mark == again.mark == which
    assert f"{which}: tried to get 20; {DO[which]}" in first.reason


def test_a_gpu_that_has_no_memory_for_nccl_is_not_a_peers_fault():
    peer = fault(0, 9.0, "DistBackendError", "remote process exited or there was a network error")
    assert judge(seen(faults=[peer, fault(2, 10.0, GPU, "DistBackendError: NCCL error")])).rank == 2


def test_the_exit_code_of_our_own_errors_is_kept():
    verdict = judge(seen(faults=[fault(kind="NodeError", code=NodeError.exit_code)]))
    assert verdict.exit_code == NodeError.exit_code


def test_equal_errors_have_equal_marks_and_others_have_not():
    first, same, other = fault(1, 1.0), fault(3, 2.0), fault(message="worse")
    assert first.mark == same.mark != other.mark


def test_a_hang_names_the_rank_and_what_it_was_at():
    verdict = judge(seen(exit_code=137, hang=Hang(5, "node3", 61.0, "step, step 12", True)))
    assert (verdict.ending, verdict.culprit) == (Ending.STALLED, "node3")
    assert verdict.reason == "rank 5 on node3 gave no sign of life for 61 s, at: step, step 12"


def test_a_hang_of_all_ranks_blames_no_host():
    verdict = judge(seen(exit_code=137, hang=Hang(2, "node1", 61.0, "step, step 12", False, stands_out=False)))
    assert (verdict.culprit, "all ranks waited for each other" in verdict.reason) == (None, True)


def test_a_lost_node_explains_whatever_the_ranks_said():
    verdict = judge(seen(faults=[fault()], lost_nodes=["node4"]))
    assert (verdict.ending, verdict.culprit) == (Ending.NODE_FAILURE, "node4")


def test_ranks_that_fell_while_the_job_was_taken_down_say_nothing_of_the_code():
    peer = fault(0, 9.0, "RuntimeError", "Connection closed by peer")
    assert judge(seen(faults=[peer], terminated=True)).ending is Ending.PREEMPTION


def test_ranks_that_say_nothing_at_all_are_an_error():
    verdict = judge(seen(exit_code=127))
    assert (verdict.ending, "127" in verdict.reason) == (Ending.JOB_ERROR, True)


@pytest.mark.parametrize(
    ("state", "ending"),
    [
        ("NODE_FAIL", Ending.NODE_FAILURE),
        ("PREEMPTED", Ending.PREEMPTION),
        ("REQUEUED", Ending.REQUEUED),
        ("CANCELLED", Ending.CANCELLED),
        ("TIMEOUT", Ending.WALLTIME),
        ("FAILED", Ending.JOB_ERROR),
        ("COMPLETED", Ending.JOB_ERROR),
    ],
)
def test_a_segment_whose_supervisor_died_ends_as_slurm_says(state, ending):
    assert close(state, requeued=False).ending is ending


def test_without_accounts_a_later_segment_tells_that_the_job_was_requeued():
    assert close(None, requeued=True).ending is Ending.REQUEUED
    assert close(None, requeued=False).ending is Ending.UNKNOWN


@pytest.mark.parametrize("state", ["UNKNOWN", "RUNNING", "PENDING"])
def test_unknown_is_never_done(state):
    assert close(state, requeued=False).ending is Ending.UNKNOWN


@pytest.mark.parametrize("code", [2, 3, 5])
def test_a_small_exit_code_without_a_word_is_no_error_of_ours(code):
    verdict = judge(seen(exit_code=code))
    assert (Ending.JOB_ERROR, 1) == (verdict.ending, verdict.exit_code)
    assert f"exit code {code}" in verdict.reason


@pytest.mark.parametrize(
    "changes",
    [
        {"full": True},
        {"exit_code": EXIT_FULL},
        {"exit_code": 137, "task_ends": [TaskEnd(0, "node0", "Exited with exit code 77", EXIT_FULL)]},
        {"faults": [fault(), fault(0, 11.0, "FullError", "full", code=EXIT_FULL)]},
        {"exit_code": 137, "full": True, "hang": Hang(0, "node0", 60.0, "step", True)},
    ],
)
def test_a_full_file_system_explains_whatever_was_said_or_left_unsaid_and_blames_no_host(changes):
    verdict = judge(seen(**changes))
    assert (verdict.ending, verdict.exit_code, verdict.culprit) == (Ending.JOB_ERROR, EXIT_FULL, None)
    assert verdict.reason == "the results folder's file system is full"


def test_ranks_that_ended_with_the_process_that_starts_them_are_not_called_silent():
    peer = fault(0, 9.0, "RuntimeError", "Connection closed by peer [10.0.0.3]:1234")
    for faults in ((), (peer,)):
        verdict = judge(seen(exit_code=137, starter_killed="srun was killed by signal 9 (Killed)", faults=faults))
        assert (verdict.reason, verdict.exit_code) == ("srun was killed by signal 9 (Killed)", 137)
        assert (verdict.culprit, verdict.mark) == (None, "starter killed")


def test_a_starter_that_we_ended_after_a_rank_explains_nothing():
    ends = [TaskEnd(3, "node3", "Killed", None)]
    assert judge(seen(exit_code=137, task_ends=ends, starter_killed="srun was killed")).rank == 3
    assert judge(seen(exit_code=137, faults=[fault()], starter_killed="srun was killed")).rank == 2


ROLLED = dict.fromkeys(range(4), EXIT_ROLLED_BACK)


def test_ranks_that_all_rolled_back_end_so_and_say_why():
    verdict = judge(seen(exit_code=EXIT_ROLLED_BACK, exits=ROLLED, bad_step="loss must be finite, is nan"))
    assert (verdict.ending, verdict.exit_code) == (Ending.ROLLED_BACK, EXIT_ROLLED_BACK)
    assert verdict.reason == "a bad step: loss must be finite, is nan"
    assert verdict.culprit is None


@pytest.mark.parametrize(
    ("changes", "ending"),
    [
        ({"asked": "stop"}, Ending.STOPPED),
        ({"asked": "budget"}, Ending.BUDGET),
        ({"terminated": True}, Ending.PREEMPTION),
        ({"asked": "walltime", "near_limit": True}, Ending.ROLLED_BACK),
        ({"lost_nodes": ["node2"]}, Ending.NODE_FAILURE),
    ],
)
def test_a_roll_back_hides_nothing_that_was_asked_of_the_run(changes, ending):
    assert judge(seen(exit_code=EXIT_ROLLED_BACK, exits=ROLLED, **changes)).ending is ending


def test_three_of_four_ranks_rolled_back_is_an_error():
    exits = dict.fromkeys(range(3), EXIT_ROLLED_BACK)
    assert judge(seen(exit_code=137, exits=exits)).ending is Ending.JOB_ERROR
