import json

import pytest
from rundir import write_fabric

from steelrail.artifacts.train import Ending
from steelrail.artifacts.trainer import EXIT_FULL, RunFolder
from steelrail.clients.process import Completed
from steelrail.clients.slurm import Slurm
from steelrail.errors import ClusterError, FullError, NodeError, StoppedError, TrainError
from steelrail.launch import attend, ledger
from steelrail.launch.attend import Sight, care, look
from steelrail.launch.endings import Verdict
from steelrail.launch.jobs import JobLine
from steelrail.launch.ledger import Entry
from steelrail.launch.policy import Action

NO_JOB = (1, "", "slurm_load_jobs error: Invalid job id specified")
AWAY = (1, "", "Unable to contact slurm controller")
LINE = JobLine("15", 0.0, "", "", "", None)


def job(state="PENDING", **fields):
    known = {
        "Reason": "None",
        "Restarts": 0,
        "StartTime": "Unknown",
        "ExcNodeList": "(null)",
        "Partition": "gpu",
        **fields,
    }
    return 0, f"JobId=15 JobName=x\n   JobState={state} " + " ".join(f"{k}={v}" for k, v in known.items()) + "\n", ""


def account(state, end="200"):
    return 0, f"15|{state}|0:0|0:0|100|100|{end}|100|4|node[1-4]|billing=16|gpu|me|None|x|c\n", ""


def slurm(**answers):
    """A door whose commands answer by name; it keeps what was asked in ``asked``."""
    asked = []

    def run(argv, timeout, env):
        asked.append(list(argv))
        name = argv[0] if argv[0] != "scontrol" else f"{argv[0]}_{argv[1]}"
        code, out, err = answers[name]
        return Completed(tuple(argv), code, out, err)

    door = Slurm(run, retry_seconds=0.0)
    object.__setattr__(door, "asked", asked)
    return door


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED"])
def test_a_job_that_may_run_again_is_not_gone(state):
    assert not look(LINE, slurm(scontrol_show=job(state))).gone


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"])
def test_a_final_state_is_gone(state):
    assert look(LINE, slurm(scontrol_show=job(state))) == Sight(
        True, state, "None", look(LINE, slurm(scontrol_show=job(state))).view
    )


def test_a_controller_that_is_away_makes_the_job_unknown_and_not_gone():
    sight = look(LINE, slurm(scontrol_show=AWAY))
    assert (sight.gone, sight.word) == (False, "UNKNOWN")


def test_a_forgotten_job_is_told_by_the_accounts():
    assert look(LINE, slurm(scontrol_show=NO_JOB, sacct=account("CANCELLED by 1000"))).word == "CANCELLED"


@pytest.mark.parametrize("rows", [account("RUNNING", "Unknown"), account("REQUEUED"), (0, "", "")])
def test_accounts_that_lag_behind_never_say_done(rows):
    assert look(LINE, slurm(scontrol_show=NO_JOB, sacct=rows)).word == "UNKNOWN"


def test_accounts_that_fail_never_say_done():
    assert look(LINE, slurm(scontrol_show=NO_JOB, sacct=(1, "", "sacct: error: broken"))).word == "UNKNOWN"


def see(door):
    return look(LINE, door)


def test_a_requeued_job_that_waits_long_is_hastened(demo):
    far = job(Restarts=1, Reason="BeginTime", StartTime=9999999999)
    door = slurm(scontrol_show=far, scontrol_update=(0, "", ""))
    care(demo, door, see(door))
    assert door.asked[-1] == ["scontrol", "update", "JobId=15", f"StartTime=now+{demo.launch.requeue_delay_seconds}"]


@pytest.mark.parametrize("fields", [{"Restarts": 0}, {"Reason": "Resources"}, {"StartTime": 1}])
def test_a_job_that_waits_for_something_else_is_not_touched(demo, fields):
    waiting = job(**{"Restarts": 1, "Reason": "BeginTime", "StartTime": 9999999999, **fields})
    door = slurm(scontrol_show=waiting)
    care(demo, door, see(door))
    assert all(argv[1] != "update" for argv in door.asked)


NODES = "".join(f"node{number}|idle|4|gpu:h100:16\n" for number in range(1, 6))


def test_an_exclusion_is_dropped_when_too_few_other_nodes_are_up(demo):
    door = slurm(
        scontrol_show=job(ExcNodeList="node3"),
        sinfo=(0, NODES.replace("node5|idle", "node5|down*"), ""),
        scontrol_update=(0, "", ""),
    )
    care(demo, door, see(door))
    assert door.asked[-1] == ["scontrol", "update", "JobId=15", "ExcNodeList="]


def test_a_node_that_the_fabric_stage_ruled_out_stays_out_however_few_are_up(here):
    write_fabric(here, exclude=("node3",))
    few = (0, NODES.replace("node5|idle", "node5|down*"), "")
    door = slurm(scontrol_show=job(ExcNodeList="node[2-3]"), sinfo=few, scontrol_update=(0, "", ""))
    care(here, door, see(door))
    assert door.asked[-1] == ["scontrol", "update", "JobId=15", "ExcNodeList=node3"]


def test_an_exclusion_stays_while_enough_other_nodes_are_up(demo):
    door = slurm(scontrol_show=job(ExcNodeList="node3"), sinfo=(0, NODES, ""))
    care(demo, door, see(door))
    assert door.asked[-1][0] == "sinfo"


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "demo" / "train" / "0123456789ab")


def attempt(folder, number, verdict=None, action=None):
    start = Entry(number, "15", 0, 100.0, ("node1",), number, "abc", 0.0)
    ledger.write_start(folder, "node1", start)
    if verdict is not None:
        ledger.write_end(folder, "node1", number, verdict, False, action)


def ended(folder, demo, word="COMPLETED", door=None):
    return attend.conclude(demo, None, folder, door, Sight(True, word))


def test_an_error_of_a_rank_is_raised_with_its_trace_and_log(folder, demo):
    verdict = Verdict(
        Ending.JOB_ERROR, "rank 2 on node1 at step 7: ValueError: x", 1, "node1", 2, "m", 7, "Traceback: here"
    )
    attempt(folder, 1, verdict, Action.STOP)
    with pytest.raises(TrainError) as caught:
        ended(folder, demo, "FAILED")
    assert "ValueError: x" in str(caught.value)
    assert "Traceback: here" in str(caught.value)
    assert "attempt-0001.log" in str(caught.value)


def test_an_error_of_ours_keeps_its_branch_and_exit_code(folder, demo):
    attempt(folder, 1, Verdict(Ending.JOB_ERROR, "NVMe is full", NodeError.exit_code), Action.STOP)
    with pytest.raises(NodeError, match="NVMe is full"):
        ended(folder, demo, "FAILED")


@pytest.mark.parametrize("ending", [Ending.STOPPED, Ending.BUDGET, Ending.CANCELLED])
def test_what_was_ended_on_purpose_is_raised_as_stopped(folder, demo, ending):
    attempt(folder, 1, Verdict(ending, "x"), Action.STOP)
    with pytest.raises(StoppedError, match=ending.value):
        ended(folder, demo)


def test_a_job_cancelled_while_it_waited_is_stopped(folder, demo):
    attempt(folder, 1, Verdict(Ending.REQUEUED, "x"), None)
    with pytest.raises(StoppedError, match="cancelled"):
        ended(folder, demo, "CANCELLED")


def test_a_job_that_never_began_an_attempt_points_to_its_log(folder, demo):
    with pytest.raises(ClusterError, match="over before an attempt began"):
        ended(folder, demo, "FAILED")


def test_an_attempt_left_open_is_closed_by_slurms_word_before_anything_is_said(folder, demo):
    attempt(folder, 1)
    with pytest.raises(TrainError, match="walltime"):
        ended(folder, demo, "TIMEOUT")
    assert ledger.read(folder)[0].ending is Ending.WALLTIME


def test_a_time_limit_that_hit_before_the_supervisor_could_answer_is_followed_by_another_job(folder, demo):
    attempt(folder, 1)
    assert attend.after(demo, folder, None, Sight(True, "TIMEOUT"), 0).action in (Action.REQUEUE, Action.RESTART)


@pytest.mark.parametrize("word", ["CANCELLED"])
def test_a_cancelled_job_is_followed_by_nothing(folder, demo, word):
    attempt(folder, 1)
    assert attend.after(demo, folder, None, Sight(True, word), 0).action is Action.STOP


def test_a_stop_request_is_followed_by_nothing(folder, demo):
    attempt(folder, 1)
    folder.stop_request.write_text(json.dumps({}))
    assert attend.after(demo, folder, None, Sight(True, "TIMEOUT"), 0).action is Action.STOP


def test_what_the_supervisor_decided_is_not_decided_again(folder, demo):
    attempt(folder, 1, Verdict(Ending.JOB_ERROR, "x", 1), Action.STOP)
    assert attend.after(demo, folder, None, Sight(True, "FAILED"), 0).action is Action.STOP


def test_a_job_that_never_began_is_not_submitted_again_and_again(folder, demo):
    assert attend.after(demo, folder, None, Sight(True, "FAILED"), 0).action is Action.STOP


def test_a_job_that_made_no_attempt_ends_the_run_whatever_came_before(folder, demo):
    attempt(folder, 1, Verdict(Ending.NODE_FAILURE, "lost", None), Action.REQUEUE)
    before = ledger.read(folder)[0].job_id
    assert attend.after(demo, folder, None, Sight(True, "FAILED"), 0, before).action is Action.REQUEUE
    assert attend.after(demo, folder, None, Sight(True, "FAILED"), 0, "another").action is Action.STOP


def test_a_local_run_that_must_leave_its_host_is_not_begun_on_it_again(folder, demo, change):
    attempt(folder, 1, Verdict(Ending.JOB_ERROR, "disk is full", 6), Action.REQUEUE)
    here = change(demo, "slurm", executor="local")
    assert attend.after(here, folder, None, Sight(True, "COMPLETED"), 0).action is Action.STOP
    assert attend.after(demo, folder, None, Sight(True, "COMPLETED"), 0).action is Action.REQUEUE


def test_a_driver_that_attached_judges_the_attempt_that_was_running(folder, demo):
    attempt(folder, 1, Verdict(Ending.NODE_FAILURE, "lost", None), Action.REQUEUE)
    job = ledger.read(folder)[0].job_id
    assert attend.after(demo, folder, None, Sight(True, "NODE_FAIL"), 1, job).action is Action.REQUEUE


def test_a_job_that_ended_by_itself_before_an_attempt_was_ended_on_purpose(folder, demo):
    with pytest.raises(StoppedError, match="its budget was spent"):
        ended(folder, demo, "COMPLETED")


def test_a_job_that_found_the_budget_spent_says_so(folder, demo):
    attempt(folder, 1, Verdict(Ending.BUDGET, "the budget is spent", 75), Action.STOP)
    with pytest.raises(StoppedError, match="is budget"):
        attend.conclude(demo, None, folder, None, Sight(True, "COMPLETED"), "another")


def test_a_full_file_system_is_raised_as_such_with_the_folder(folder, demo):
    attempt(folder, 1, Verdict(Ending.JOB_ERROR, "full", EXIT_FULL), Action.STOP)
    with pytest.raises(FullError, match="results folder must be able to take more bytes") as caught:
        ended(folder, demo, "FAILED")
    assert (caught.value.exit_code, str(folder.root) in str(caught.value)) == (6, True)
