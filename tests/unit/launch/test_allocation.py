import os
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
    for option in (
        "--jobid=15",
        "--nodes=4",
        "--ntasks=4",
        "--ntasks-per-node=1",
        "--cpus-per-task=2",
        "--kill-on-bad-exit=1",
    ):
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


@pytest.fixture
def ranks(local, tmp_path):
    """Start three ranks that run the body of a ``main``; their log is ``tmp_path / "log"``."""

    def start(body):
        (tmp_path / "small_rank.py").write_text(f"import os, signal as s, sys, time\ndef main(argv):\n    {body}\n")
        path = os.pathsep.join([str(tmp_path), *sys.path])
        return local.start(["small_rank", "argument"], ["here"], {"PYTHONPATH": path}, "a", tmp_path / "log")

    return start


def test_local_ranks_know_their_places_and_mark_their_lines(ranks, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "5")
    print_place = "print(os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ.get('SLURM_PROCID'), argv); return 0"
    assert ended(ranks(print_place)) == 0
    lines = sorted((tmp_path / "log").read_text().splitlines())
    assert lines == [f"{rank}: {rank} 3 None ['small_rank', 'argument']" for rank in range(3)]


def test_a_local_rank_that_fails_takes_the_others_down_and_its_code_is_that_of_all(ranks):
    started = ranks("time.sleep(0 if os.environ['RANK'] == '1' else 60); return 3")
    began = time.monotonic()
    assert ended(started) == 3
    assert [(end.rank, end.exit_code, end.killed) for end in started.task_ends()[:1]] == [(1, 3, False)]
    assert sorted((end.rank, end.killed) for end in started.task_ends()[1:]) == [(0, False), (2, False)]
    assert time.monotonic() - began < 10


def test_a_signal_reaches_every_local_rank(ranks, tmp_path):
    started = ranks("s.pthread_sigmask(0, {s.SIGUSR2}); print('up'); s.sigwait({s.SIGUSR2}); return 0")
    while (tmp_path / "log").read_text().count("up") < 3:
        time.sleep(0.02)
    started.signal("USR2")
    assert ended(started) == 0


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
