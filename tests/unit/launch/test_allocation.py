import signal
import sys
import time

import pytest
from rundir import write_fabric

from steelrail.clients import process
from steelrail.clients.process import Completed
from steelrail.clients.slurm import Slurm
from steelrail.launch.allocation import SlurmAllocation, srun_argv
from steelrail.launch.local import LocalAllocation


def door(asked, **answers):
    def run(argv, timeout, env):
        asked.append(list(argv))
        name = argv[0] if argv[0] != "scontrol" else f"{argv[0]}_{argv[1]}"
        return Completed(tuple(argv), *answers.get(name, (0, "", "")))

    return Slurm(run, retry_seconds=0.0)


def view(state="RUNNING", restarts=0, host="node1"):
    return 0, f"JobId=15 JobName=x\n   JobState={state} Reason=None\n   Restarts={restarts}\n   BatchHost={host}\n", ""


def allocation(run, slurm, segment=0):
    return SlurmAllocation(run, slurm, "15", segment, "node1", ("node1", "node2", "node3", "node4"))


def test_the_ranks_start_as_one_step_that_ends_with_its_first_failure(demo, tmp_path):
    argv = srun_argv(demo, "15", ("node1", "node2", "node3", "node4"), "attempt-0001", tmp_path / "log")
    assert argv[0] == "srun"
    for option in ("--jobid=15", "--nodes=4", "--ntasks=8", "--ntasks-per-node=2", "--kill-on-bad-exit=1", "--label"):
        assert option in argv
    assert "--nodelist=node1,node2,node3,node4" in argv
    assert "--gpus-per-node=16" in argv


@pytest.mark.parametrize(
    ("answer", "mine"),
    [
        (view(), True),
        (view(restarts=1), False),
        (view(state="COMPLETING"), False),
        (view(state="PENDING"), False),
        (view(host="node2"), False),
        ((1, "", "Invalid job id specified"), False),
    ],
)
def test_a_segment_is_ours_only_while_slurm_says_so(demo, answer, mine):
    assert allocation(demo, door([], scontrol_show=answer)).mine() is mine


def test_a_supervisor_of_an_earlier_segment_is_not_the_owner(demo):
    assert not allocation(demo, door([], scontrol_show=view(restarts=2)), segment=1).mine()


NODES = "".join(f"node{number}|idle|4|gpu:16\n" for number in range(1, 6))


def test_a_requeue_leaves_out_the_culprit_when_enough_nodes_remain(demo):
    asked = []
    allocation(demo, door(asked, sinfo=(0, NODES, ""))).requeue(["node3"])
    assert asked[-2:] == [["scontrol", "requeue", "15"], ["scontrol", "update", "JobId=15", "ExcNodeList=node3"]]


def test_a_requeue_goes_on_leaving_out_what_the_fabric_stage_ruled_out(here):
    asked = []
    write_fabric(here, exclude=("node1",))
    six = NODES + "node6|idle|4|gpu:16\n"
    allocation(here, door(asked, sinfo=(0, six, ""))).requeue(["node3"])
    assert asked[-1] == ["scontrol", "update", "JobId=15", "ExcNodeList=node1,node3"]


def test_a_requeue_leaves_nobody_out_when_too_few_would_remain(demo):
    asked = []
    allocation(demo, door(asked, sinfo=(0, NODES.replace("node5|idle", "node5|down*"), ""))).requeue(["node3"])
    assert asked[-1] == ["scontrol", "requeue", "15"]


@pytest.fixture
def local(demo):
    shape = demo.shape.model_copy(update={"nodes": 1, "ranks_per_node": 3})
    return LocalAllocation(demo.model_copy(update={"shape": shape}), "42", "here", 0.0)


def ended(ranks, seconds=30):
    deadline = time.monotonic() + seconds
    while (code := ranks.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return code


def test_local_ranks_know_their_places_and_mark_their_lines(local, tmp_path):
    code = "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ.get('SLURM_PROCID'))"
    assert ended(local.start([sys.executable, "-c", code], {}, "a", tmp_path / "log")) == 0
    lines = sorted((tmp_path / "log").read_text().splitlines())
    assert lines == ["0: 0 3 None", "1: 1 3 None", "2: 2 3 None"]


def test_a_local_rank_that_fails_takes_the_others_down(local, tmp_path):
    code = "import os, sys, time; time.sleep(0 if os.environ['RANK'] == '1' else 60); sys.exit(3)"
    ranks = local.start([sys.executable, "-c", code], {}, "a", tmp_path / "log")
    assert ended(ranks) == 128 + signal.SIGTERM
    assert (ranks.task_ends()[0].rank, ranks.task_ends()[0].exit_code) == (1, 3)


def test_a_signal_reaches_every_local_rank(local, tmp_path):
    code = "import signal as s; s.pthread_sigmask(0, {s.SIGUSR2}); print('up', flush=True); s.sigwait({s.SIGUSR2})"
    ranks = local.start([sys.executable, "-c", code], {}, "a", tmp_path / "log")
    while (tmp_path / "log").read_text().count("up") < 3:
        time.sleep(0.02)
    ranks.signal("USR2")
    assert ended(ranks) == 0


EARS = """
import os, signal, sys, time
from steelrail.launch.pulse import Ears
ears = Ears()
ears.start()
os.kill(os.getpid(), getattr(signal, sys.argv[1]))
deadline = time.monotonic() + 10
while not ears.asked() and time.monotonic() < deadline:
    pass
print(ears.heard.name)
"""


@pytest.mark.parametrize("name", ["SIGUSR2", "SIGTERM"])
def test_a_signal_to_save_is_heard_while_the_main_thread_is_busy(name):
    # In a process of its own: signals are blocked per thread, and this one has threads already.
    assert process.run([sys.executable, "-c", EARS, name], 60).stdout == f"{name}\n"
