"""The supervisor over real processes of this host; the rank is a small program that does as its plan says."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rundir import entry, saved

import steelrail
from steelrail.artifacts.train import Ending
from steelrail.artifacts.trainer import EXIT_FULL, EXIT_SAVED, RunFolder
from steelrail.clients import process
from steelrail.errors import StoreError, TrainError
from steelrail.launch import ledger, ranks, supervise
from steelrail.launch.freeze import Frozen
from steelrail.launch.local import LocalAllocation
from steelrail.launch.policy import Action
from steelrail.launch.supervise import Flags, Site

# Behaviour by attempt and rank; what is not planned ends well. ``save`` waits for USR2, as a trainer's rank does.
RANK = """
def main(argv):
    import faulthandler, json, os, signal, sys, time
    faulthandler.register(signal.SIGQUIT)
    from pathlib import Path
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGTERM})
    root, attempt, rank = Path(argv[1]), int(argv[2]), int(os.environ["RANK"])
    plan = json.loads((root / "plan.json").read_text()).get(f"{attempt}.{rank}", "done")
    events = root / "events" / f"attempt-{attempt:04d}-rank-{rank:05d}.jsonl"
    for folder in ("events", "heartbeats", "errors"):
        (root / folder).mkdir(exist_ok=True)
    def say(kind, **data):
        head = {"time": time.time(), "kind": kind, "attempt": attempt, "rank": rank, "host": "here"}
        with events.open("a") as file:
            file.write(json.dumps({**head, **data}) + "\\n")
    def end(code, reason=""):
        say("end", exit_code=code, reason=reason)
        os._exit(code)
    def beat(step=3):
        path = root / "heartbeats" / f"rank-{rank:05d}.json"
        fields = dict(attempt=attempt, rank=rank, host="here", pid=os.getpid(), time=time.time())
        fields |= dict(progress=attempt, step=step, doing="step")
        path.with_suffix(f".{os.getpid()}").write_text(json.dumps(fields))
        path.with_suffix(f".{os.getpid()}").replace(path)
    beat()
    say("step", step=attempt, start=time.time(), seconds={}, tokens=1)
    if plan.startswith("durable"):
        say("durable", step=attempt, where="store", bytes=1, seconds=0.0)
        plan = plan.removeprefix("durable ")
    if plan == "kill":
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    if plan == "raise":
        fault = dict(rank=rank, host="here", type="ValueError", message="bad", step=7)
        fault |= dict(trace="trace of it", exit_code=1, time=time.time())
        (root / "errors" / f"attempt-{attempt:04d}-rank-{rank:05d}.json").write_text(json.dumps(fault))
        end(1)
    if plan == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if plan == "walk":
        for step in range(4, 12):
            beat(step)
            time.sleep(0.4)
        os.kill(os.getpid(), signal.SIGKILL)
    if plan == "say":
        sys.stdout.write("a line\\n")
        sys.stdout.flush()
        time.sleep(600)
    if plan in ("save", "wait", "peer"):
        for _ in range(600):
            beat()
            heard = signal.sigtimedwait({signal.SIGUSR2, signal.SIGTERM}, 0.1)
            if heard:
                end(75, "saved on " + signal.Signals(heard.si_signo).name)
    end(0)
"""


@pytest.fixture
def site(tmp_path, demo, monkeypatch):
    shape = demo.shape.model_copy(update={"nodes": 1, "ranks_per_node": 2})
    launch = demo.launch.model_copy(update={"hang_seconds": 5.0, "startup_seconds": 20.0})
    slurm = demo.slurm.model_copy(update={"executor": "local"})
    run = demo.model_copy(update={"shape": shape, "launch": launch, "slurm": slurm})
    code = tmp_path / "code"
    code.mkdir()
    (code / "planned_rank.py").write_text(RANK)
    monkeypatch.setattr(ranks, "RANK_MODULE", "planned_rank")
    root = tmp_path / "0123456789ab"
    root.mkdir()
    epochs = iter(range(1, 100))
    frozen = Frozen(os.pathsep.join([str(code), *sys.path]), "abc", "def", "ghi", "3.6")
    allocation = LocalAllocation(run, "42", "here", time.time())
    return Site(RunFolder(root), root.name, run, frozen, allocation, Flags(), lambda: next(epochs))


@pytest.fixture
def started(monkeypatch):
    """The ranks of every attempt, as they are started."""
    began, original = [], LocalAllocation.start

    def start(self, *arguments):
        began.append(original(self, *arguments))
        return began[-1]

    monkeypatch.setattr(LocalAllocation, "start", start)
    return began


def plan(site, **behaviour):
    named = {name.removeprefix("a").replace("r", "."): what for name, what in behaviour.items()}
    (site.folder.root / "plan.json").write_text(json.dumps(named))


def told(site):
    return [(entry.ending, entry.action) for entry in ledger.read(site.folder)]


def after_start(site, attempt, act):
    """Do something once the ranks of an attempt are alive."""

    def wait():
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            beats = list((site.folder.root / "heartbeats").glob("rank-0000[01].json"))
            if len(beats) == 2 and any(entry.attempt == attempt for entry in ledger.read(site.folder)):
                act()
                return
            time.sleep(0.05)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_ranks_that_end_well_finish_the_run(site):
    plan(site)
    assert supervise.supervise(site) == "done"
    (entry,) = ledger.read(site.folder)
    assert (entry.ending, entry.action, entry.epoch, entry.job_id) == (Ending.DONE, Action.FINISH, 1, "42")
    assert entry.code_digest == "abc"


def wanting_standby(site):
    launch = site.run.launch.model_copy(update={"standby": True})
    return replace(site, run=site.run.model_copy(update={"launch": launch}))


def test_the_next_attempt_is_loaded_while_one_trains_and_used_when_it_ends(site, started):
    site = wanting_standby(site)
    plan(site, a1r1="walk", a1r0="peer")
    assert supervise.supervise(site) == "done"
    assert told(site) == [(Ending.JOB_ERROR, Action.RESTART), (Ending.DONE, Action.FINISH)]
    assert len(started) == 2 and site.standby.ranks is None
    assert process.started(started[1].starter.process.pid) is None  # gone, as all of it
    second = [json.loads(line) for line in site.folder.events(2, 0).read_text().splitlines()]
    assert [event["attempt"] for event in second] == [2, 2]


def test_what_waits_for_an_attempt_that_does_not_come_is_ended(site, started):
    site = wanting_standby(site)
    ranks.stand_by(site, entry(1, nodes=("here",)))
    assert started[0].poll() is None
    plan(site)
    assert ended(ranks.start(site, entry(1, nodes=("here",)))) == 0
    assert [ended(one) for one in started] == [0, 0]
    assert not site.folder.events(2, 0).exists()


def test_what_waits_on_other_nodes_is_not_used(site, started):
    site = wanting_standby(site)
    ranks.stand_by(site, entry(1, nodes=("there",)))
    plan(site)
    assert ended(ranks.start(site, entry(2, nodes=("here",)))) == 0
    assert len(started) == 2


def test_what_died_while_it_waited_is_started_anew(site, started):
    site = wanting_standby(site)
    ranks.stand_by(site, entry(1, nodes=("here",)))
    started[0].kill()
    plan(site)
    assert ended(ranks.start(site, entry(2, nodes=("here",)))) == 0
    assert len(started) == 2


def test_a_run_on_cpus_keeps_nothing_loaded_unless_it_says_so(site, started):
    ranks.stand_by(site, entry(1, nodes=("here",)))
    assert started == []
    assert ranks.wanted(wanting_standby(site).run) and not ranks.wanted(site.run)
    gpus = site.run.shape.model_copy(update={"device": "cuda"})
    assert ranks.wanted(site.run.model_copy(update={"shape": gpus}))


def ended(one, seconds=30):
    deadline = time.monotonic() + seconds
    while (code := one.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return code


def test_a_killed_rank_takes_the_others_down_and_the_ranks_start_again_with_a_new_fence(site):
    plan(site, a1r1="kill", a1r0="peer")
    began = time.monotonic()
    assert supervise.supervise(site) == "done"
    assert told(site) == [(Ending.JOB_ERROR, Action.RESTART), (Ending.DONE, Action.FINISH)]
    first, second = ledger.read(site.folder)
    assert "rank 1 on here was ended by a signal (Killed)" in first.reason
    assert (first.epoch, second.epoch) == (1, 2)
    assert time.monotonic() - began < 30


def test_a_stopped_rank_is_named_the_others_leave_their_stacks_and_the_attempt_is_started_again(site):
    plan(site, a1r1="stop", a1r0="wait")
    assert supervise.supervise(site) == "done"
    assert told(site) == [(Ending.STALLED, Action.RESTART), (Ending.DONE, Action.FINISH)]
    first = ledger.read(site.folder)[0]
    assert first.reason.startswith("rank 1 on here gave no sign of life for ")
    lines = site.folder.log(1).read_text().splitlines()
    assert any(line.startswith("0: ") and "planned_rank.py" in line and line.endswith("in main") for line in lines)


def test_the_same_error_three_times_at_one_step_stops_with_its_trace(site):
    behaviour = {f"a{attempt}r0": "durable raise" for attempt in (1, 2, 3)}
    plan(site, **behaviour)
    with pytest.raises(TrainError, match="ValueError: bad: the same error came 3 times at step 7"):
        supervise.supervise(site)
    assert [action for _, action in told(site)] == [Action.RESTART, Action.RESTART, Action.STOP]
    assert all(entry.progressed for entry in ledger.read(site.folder))


def test_a_stop_request_has_the_ranks_save_and_stays_stopped(site):
    plan(site, a1r0="save", a1r1="save")
    after_start(site, 1, lambda: site.folder.stop_request.write_text("{}"))
    assert supervise.supervise(site) == "stopped"
    (entry,) = ledger.read(site.folder)
    assert (entry.ending, entry.exit_code, entry.action) == (Ending.STOPPED, EXIT_SAVED, Action.STOP)
    assert supervise.supervise(site) == "stopped"
    assert len(ledger.read(site.folder)) == 1


def test_a_spent_budget_has_the_ranks_save_and_starts_nothing_more(site):
    plan(site, a1r0="save", a1r1="save")
    # 16 GPUs at $3.60 an hour: 1.6 cents a second; spent from the start of the segment on.
    cost = site.run.cost.model_copy(update={"budget_usd": "0.05"})
    rich = Site(**{**site.__dict__, "run": site.run.model_copy(update={"cost": cost})})
    assert supervise.supervise(rich) == "budget"
    assert told(site) == [(Ending.BUDGET, Action.STOP)]
    assert supervise.supervise(rich) == "budget"
    assert len(told(site)) == 1


def test_a_signal_to_save_with_time_to_spare_goes_on_in_the_allocation(site):
    plan(site, a1r0="durable save", a1r1="save")
    after_start(site, 1, lambda: setattr(site.flags, "signalled", True))
    original = supervise._attempt

    def attempt(here, nodes):
        try:
            return original(here, nodes)
        finally:
            here.flags.signalled = False

    supervise._attempt = attempt
    try:
        assert supervise.supervise(site) == "done"
    finally:
        supervise._attempt = original
    assert told(site) == [(Ending.WALLTIME, Action.RESTART), (Ending.DONE, Action.FINISH)]


def test_ranks_that_saved_on_term_were_preempted_though_the_supervisor_heard_nothing(site, started):
    plan(site, a1r0="save", a1r1="save")
    after_start(site, 1, lambda: started[0].signal("TERM"))
    with pytest.raises(TrainError, match="no queue to go back to"):
        supervise.supervise(site)
    assert told(site) == [(Ending.PREEMPTION, Action.REQUEUE)]


def test_a_measured_lead_longer_than_the_configured_one_decides_whether_the_limit_is_near(site, started, monkeypatch):
    ends = time.time() + 200.0
    monkeypatch.setattr(LocalAllocation, "ends", lambda self: ends)
    assert ends - time.time() > 2 * site.run.slurm.lead_seconds + 60
    saved(site.folder, 1, 100.0)
    plan(site, a2r0="save", a2r1="save")
    after_start(site, 2, lambda: started[0].signal("USR2"))
    with pytest.raises(TrainError, match="the time limit is near: walltime: saved, going on"):
        supervise.supervise(site)
    assert told(site)[1:] == [(Ending.WALLTIME, Action.REQUEUE)]


def test_a_store_that_gives_no_fence_stops_at_once(site):
    def refuse():
        raise StoreError("the store is away")

    plan(site)
    with pytest.raises(TrainError, match="no fence could be claimed: the store is away"):
        supervise.supervise(Site(**{**site.__dict__, "claim": refuse}))
    (entry,) = ledger.read(site.folder)
    assert (entry.exit_code, entry.action) == (StoreError.exit_code, Action.STOP)


def test_heartbeats_of_an_earlier_attempt_are_not_taken_for_this_one(site):
    plan(site, a1r1="kill")
    assert supervise.supervise(site) == "done"
    assert [entry.attempt for entry in ledger.read(site.folder)] == [1, 2]


def test_ranks_are_told_the_epoch_and_cublas_is_pinned_where_losses_must_repeat(site, change, monkeypatch):
    given = []
    monkeypatch.setattr(LocalAllocation, "start", lambda self, *arguments: given.append(arguments[2]))
    for deterministic in (True, False):
        run = change(site.run, "train", deterministic=deterministic)
        ranks.start(replace(site, run=run), entry(epoch=5))
    assert [env["STEELRAIL_EPOCH"] for env in given] == ["5", "5"]
    assert [env.get("CUBLAS_WORKSPACE_CONFIG") for env in given] == [":4096:8", None]
    assert {env["PYTHONPATH"] for env in given} == {site.frozen.code}


def test_signals_that_submitit_would_answer_by_a_requeue_are_ours():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGCONT)}
    flags = Flags()
    try:
        flags.install()
        os.kill(os.getpid(), signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGTERM)
        assert (flags.signalled, flags.terminated) == (True, True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_the_supervisor_can_be_pickled_by_name():
    assert supervise.main.__module__ == "steelrail.launch.supervise"
    assert steelrail.__file__


def test_a_spare_takes_the_place_of_a_node_that_is_out_and_the_others_keep_theirs():
    held = ("node1", "node2", "node3", "node4", "node5")
    nodes = supervise.replaced(held[:4], held, {"node3"})
    assert nodes == ("node1", "node2", "node5", "node4")
    assert supervise.replaced(nodes, held, {"node3"}) == nodes
    assert supervise.replaced(nodes, held, {"node3", "node1"}) == nodes


def test_an_attempt_never_takes_the_number_of_one_that_left_events_when_the_ledger_is_lost(site):
    plan(site)
    assert supervise.supervise(site) == "done"
    site.folder.ledger.unlink()
    plan(site, a1r0="kill", a1r1="kill", a2r0="kill", a2r1="kill", a3r0="kill", a3r1="kill", a4r0="kill", a4r1="kill")
    with pytest.raises(TrainError):
        supervise.supervise(site)
    assert ledger.read(site.folder)[0].attempt == 2


def test_a_log_that_the_file_system_does_not_take_stops_the_run_at_the_first_attempt(site):
    plan(site, a1r0="say", a1r1="wait")
    site.folder.log(1).parent.mkdir()
    site.folder.log(1).symlink_to("/dev/full")
    with pytest.raises(TrainError, match="file system is full: FullError: a restart would meet it again"):
        supervise.supervise(site)
    (entry,) = ledger.read(site.folder)
    assert (entry.exit_code, entry.action, entry.culprit) == (EXIT_FULL, Action.STOP, None)


def test_a_killed_process_of_the_node_is_named_and_the_ranks_start_again(site):
    plan(site, a1r0="wait", a1r1="wait")
    after_start(site, 1, lambda: os.kill(node_of(site), signal.SIGKILL))
    assert supervise.supervise(site) == "done"
    assert told(site) == [(Ending.JOB_ERROR, Action.RESTART), (Ending.DONE, Action.FINISH)]
    reason = "the process that the ranks are forked from was killed by signal 9 (Killed)"
    assert ledger.read(site.folder)[0].reason.startswith(reason)


def node_of(site):
    """The process that the ranks of the newest attempt were forked from."""
    beat = json.loads((site.folder.root / "heartbeats" / "rank-00000.json").read_text())
    status = Path(f"/proc/{beat['pid']}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("PPid:")).split()[1])


ORPHAN = """
import os, time
from steelrail.launch.supervise import _await_the_end
parent = os.getpid()
if os.fork() == 0:
    time.sleep(0.2)
    _await_the_end(parent)
"""


def test_a_supervisor_whose_job_is_requeued_leaves_with_its_batch_script():
    done = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, timeout=60, check=False)
    # Its output is closed only when the orphan has gone too, long before Slurm's last word would be waited for.
    assert (done.returncode, done.stderr) == (0, b"")
