import pytest

from steelrail.artifacts.train import Ending
from steelrail.artifacts.trainer import EXIT_FULL
from steelrail.config.schema import Launch
from steelrail.errors import BusyError, CheckpointError, ConfigError, FabricError, InputError, NodeError, StoreError
from steelrail.launch.policy import Action, Past, decide

LIMITS = Launch()


def past(*endings, progressed=False):
    return [Past(ending, progressed, exit_code=1, mark=f"m{index}") for index, ending in enumerate(endings)]


def actions(history):
    """What was decided after each of the attempts of a history, in turn."""
    return [decide(history[: count + 1], LIMITS).action for count in range(len(history))]


def test_done_finishes():
    assert decide(past(Ending.DONE), LIMITS).action is Action.FINISH


@pytest.mark.parametrize("ending", [Ending.STOPPED, Ending.BUDGET, Ending.CANCELLED])
def test_what_was_ended_on_purpose_stays_ended(ending):
    assert decide(past(ending), LIMITS).action is Action.STOP


@pytest.mark.parametrize("ending", [Ending.PREEMPTION, Ending.REQUEUED, Ending.NODE_FAILURE])
def test_what_slurm_does_to_us_never_stops_the_run(ending):
    assert actions(past(*[ending] * 20)) == [Action.REQUEUE] * 20


@pytest.mark.parametrize("ending", [Ending.JOB_ERROR, Ending.STALLED])
def test_two_restarts_in_the_allocation_then_one_requeue_then_stop(ending):
    expected = [Action.RESTART, Action.RESTART, Action.REQUEUE, Action.STOP]
    assert actions(past(*[ending] * 4)) == expected


def test_the_first_restart_is_at_once_and_the_next_waits_a_moment():
    history = past(Ending.JOB_ERROR, Ending.JOB_ERROR)
    assert (decide(history[:1], LIMITS).pause_seconds, decide(history, LIMITS).pause_seconds) == (0.0, 5.0)


def test_the_requeue_leaves_out_the_culprit_of_the_last_failure():
    history = past(Ending.STALLED, Ending.STALLED)
    history.append(Past(Ending.STALLED, False, culprit="node3", mark="m"))
    assert decide(history, LIMITS).exclude == "node3"


def test_a_restart_in_the_allocation_leaves_nothing_out():
    assert decide([Past(Ending.STALLED, False, culprit="node3", mark="m")], LIMITS).exclude is None


def test_a_newer_durable_checkpoint_makes_the_count_begin_again():
    history = past(*[Ending.JOB_ERROR] * 3)
    history += [Past(Ending.JOB_ERROR, True, mark="x"), Past(Ending.JOB_ERROR, False, mark="y")]
    assert decide(history, LIMITS).action is Action.RESTART


def test_a_lost_node_between_failures_does_not_forgive_them():
    history = past(Ending.JOB_ERROR, Ending.NODE_FAILURE, Ending.JOB_ERROR, Ending.JOB_ERROR)
    assert actions(history) == [Action.RESTART, Action.REQUEUE, Action.RESTART, Action.REQUEUE]


def test_the_same_error_three_times_at_one_step_stops():
    history = [Past(Ending.JOB_ERROR, True, exit_code=1, mark="ValueError: x", step=7)] * 3
    decision = decide(history, LIMITS)
    assert decision.action is Action.STOP
    assert "same error came 3 times at step 7" in decision.reason


def test_the_same_error_at_other_steps_goes_on_while_there_is_progress():
    history = [Past(Ending.JOB_ERROR, True, exit_code=1, mark="ValueError: x", step=step) for step in (7, 17, 27)]
    assert decide(history, LIMITS).action is Action.RESTART


def test_ranks_that_are_killed_now_and_then_go_on_for_ever_while_there_is_progress():
    history = [Past(Ending.JOB_ERROR, True, 137, "node3", "rank killed: Killed")] * 20
    assert actions(history) == [Action.RESTART] * 20
    stuck = [Past(Ending.JOB_ERROR, False, 137, "node3", "rank killed: Killed")] * 3
    assert "the same error came 3 times" in decide(stuck, LIMITS).reason


@pytest.mark.parametrize("kind", [ConfigError, InputError, StoreError, CheckpointError, BusyError])
def test_what_a_restart_would_meet_again_stops_at_once(kind):
    decision = decide([Past(Ending.JOB_ERROR, False, exit_code=kind.exit_code)], LIMITS)
    assert (decision.action, kind.__name__ in decision.reason) == (Action.STOP, True)


@pytest.mark.parametrize("kind", [NodeError, FabricError])
def test_a_fault_of_the_host_is_requeued_without_it(kind):
    decision = decide([Past(Ending.JOB_ERROR, False, exit_code=kind.exit_code, culprit="node2")], LIMITS)
    assert (decision.action, decision.exclude) == (Action.REQUEUE, "node2")


def test_walltime_after_new_steps_goes_on_for_ever():
    assert actions(past(*[Ending.WALLTIME] * 9, progressed=True)) == [Action.RESTART] * 9


def test_walltime_without_time_left_is_requeued():
    assert decide(past(Ending.WALLTIME, progressed=True), LIMITS, room=False).action is Action.REQUEUE


def test_walltime_after_no_new_step_stops_the_run():
    history = past(Ending.WALLTIME, Ending.WALLTIME)
    assert decide(history[:1], LIMITS, room=False).action is Action.REQUEUE
    assert decide(history, LIMITS, room=False).action is Action.STOP


def test_an_error_with_no_time_left_is_requeued():
    assert decide(past(Ending.JOB_ERROR), LIMITS, room=False).action is Action.REQUEUE


def test_limits_of_zero_stop_at_the_first_failure():
    limits = Launch(restarts_in_allocation=0, requeues_without_progress=0)
    assert decide(past(Ending.STALLED), limits).action is Action.STOP


def test_a_spare_takes_a_lost_nodes_place_and_the_nodes_are_kept():
    lost = [Past(Ending.NODE_FAILURE, False, culprit="node3")]
    after = decide(lost, LIMITS, spares=0)
    assert (after.action, after.exclude) == (Action.RESTART, "node3")
    assert decide(lost, LIMITS, spares=-1).action is Action.REQUEUE
    assert decide(lost, LIMITS, room=False, spares=0).action is Action.REQUEUE


@pytest.mark.parametrize(
    "failure",
    [
        Past(Ending.STALLED, False, culprit="node3", mark="m", host_silent=True),
        Past(Ending.JOB_ERROR, False, NodeError.exit_code, "node3", "m"),
    ],
)
def test_a_spare_takes_the_place_of_a_node_that_is_at_fault(failure):
    after = decide([failure], LIMITS, spares=1)
    assert (after.action, after.exclude) == (Action.RESTART, "node3")
    assert decide([failure], LIMITS, spares=0) == decide([failure], LIMITS)


def test_a_rank_that_fails_again_and_again_moves_to_the_spare_before_the_run_stops():
    history = [Past(Ending.JOB_ERROR, False, 1, "node3", f"m{number}") for number in range(4)]
    told = [decide(history[: count + 1], LIMITS, spares=1) for count in range(4)]
    assert [one.action for one in told] == [Action.RESTART, Action.RESTART, Action.RESTART, Action.STOP]
    assert [one.exclude for one in told] == [None, None, "node3", None]


def test_a_full_file_system_stops_at_once():
    decision = decide([Past(Ending.JOB_ERROR, False, exit_code=EXIT_FULL)], LIMITS)
    assert (decision.action, "FullError" in decision.reason) == (Action.STOP, True)


def test_a_bad_step_that_was_rolled_back_restarts_as_often_as_it_happens_and_requeues_without_room():
    assert actions(past(*[Ending.ROLLED_BACK] * 20)) == [Action.RESTART] * 20
    assert decide(past(Ending.ROLLED_BACK), LIMITS, room=False).action is Action.REQUEUE
    assert decide(past(Ending.ROLLED_BACK), LIMITS).exclude is None


def test_a_roll_back_is_no_failure_and_forgives_none():
    history = past(Ending.JOB_ERROR, Ending.ROLLED_BACK, Ending.JOB_ERROR, Ending.ROLLED_BACK, Ending.JOB_ERROR)
    assert actions(history)[::2] == [Action.RESTART, Action.RESTART, Action.REQUEUE]
