import dataclasses
import json

import pytest
from rundir import attempt, frozen_folder, rank_did, write_inputs

from steelrail.artifacts.files import results_folder
from steelrail.artifacts.train import Ending
from steelrail.errors import ClusterError, InputError
from steelrail.formats.scontrol import JobView
from steelrail.formats.squeue import QueueRow
from steelrail.launch import logs, queued, status, stop
from steelrail.launch.jobs import JobLine, add_job
from steelrail.launch.policy import Action
from steelrail.launch.request import job_comment
from steelrail.train.plan import mfu


@pytest.fixture
def local(here, change):
    return change(here, "slurm", executor="local")


def test_a_run_that_never_began_has_only_its_stage(local):
    now = status.status(local)
    assert (now.stage, now.state, now.step, now.key) == ("corpus", "none", None, None)


def test_a_run_that_was_interrupted_shows_step_checkpoint_money_and_ending(local):
    inputs = write_inputs(local)
    folder = frozen_folder(local, inputs)
    attempt(folder, 1, Ending.STOPPED, Action.STOP)
    rank_did(folder, 1, [1, 2, 3], durable=[2])
    now = status.status(local)
    assert (now.key, now.attempt, now.step, now.durable_step) == (inputs.key, 1, 3, 2)
    assert now.last_ending == "attempt 1: stopped: because"
    assert now.spent_micro_usd > 0
    assert (now.tokens_per_s, now.eta_seconds) == (None, None)


def test_the_status_for_machines_says_what_the_text_says(local):
    inputs = write_inputs(local)
    attempt(frozen_folder(local, inputs), 1, Ending.STOPPED, Action.STOP)
    now = status.status(local)
    assert json.loads(now.json())["key"] == inputs.key
    assert f"key {inputs.key}" in now.text()


def test_a_living_attempt_on_gpus_shows_its_mfu(here, llama, change):
    from steelrail.clients.holder import this_process

    run = change(llama.model_copy(update={"results": here.results}), "slurm", executor="local")
    run = change(run, "train", init_from=None)
    folder = frozen_folder(run, write_inputs(run))
    add_job(folder, JobLine("77", 0.0, "", "", "", this_process().text()))
    attempt(folder, 1)
    rank_did(folder, 1, [1, 2, 3])
    now = status.status(run)
    assert now.mfu == mfu(run, now.tokens_per_s) > 0
    assert f"tokens/s, MFU {now.mfu:.1%}, " in now.text()
    assert json.loads(now.json())["mfu"] == now.mfu


def test_stop_without_a_job_says_so_and_leaves_no_request(local):
    folder = frozen_folder(local, write_inputs(local))
    assert "nothing to stop" in stop.stop(local)
    assert not folder.stop_request.exists()


def test_stop_asks_the_living_local_job(local):
    from steelrail.clients.holder import this_process

    folder = frozen_folder(local, write_inputs(local))
    add_job(folder, JobLine("1", 0.0, "", "", "", this_process().text()))
    assert "asked to save and end" in stop.stop(local)
    assert folder.stop_request.exists()


def test_logs_of_a_run_that_never_began_say_what_to_do(local):
    with pytest.raises(InputError, match="run train first"):
        list(logs.lines(local))


def test_logs_are_those_of_the_newest_attempt(local):
    folder = frozen_folder(local, write_inputs(local))
    for number in (1, 2):
        attempt(folder, number, Ending.STOPPED, Action.STOP)
        folder.log(number).parent.mkdir(exist_ok=True)
        folder.log(number).write_text(f"0: attempt {number}\n")
    assert list(logs.lines(local)) == ["0: attempt 2"]
    assert list(logs.lines(local, follow=True)) == ["0: attempt 2"]


class Queue:
    """A Slurm whose queue holds jobs of one stage of a run."""

    def __init__(self, run, jobs, stage="fabric"):
        self.run, self.jobs, self.stage, self.cancelled = run, jobs, stage, []

    def queue(self, user, name):
        comment = job_comment(self.run.name, self.stage, "0123456789ab", results_folder(self.run))
        found = [QueueRow(job, "PENDING", "Resources", name, comment) for job in self.jobs]
        return tuple(found) if name.endswith(f"-{self.stage}") else ()

    def cancel(self, job_id):
        self.cancelled.append(job_id)


class Controller:
    """A Slurm that shows this user no jobs, and any job by its number."""

    def __init__(self, comment, state="RUNNING"):
        self.comment, self.state = comment, state

    def queue(self, user, name):
        return ()

    def job(self, job_id):
        fields = dict.fromkeys(one.name for one in dataclasses.fields(JobView))
        return JobView(**{**fields, "job_id": job_id, "state": self.state, "reason": "None", "comment": self.comment})


def test_a_job_of_another_user_is_found_by_its_number(here, monkeypatch):
    folder = frozen_folder(here, write_inputs(here))
    add_job(folder, JobLine("77", 0.0, "", "", "", None))
    ours = job_comment(here.name, "train", "0123456789ab", results_folder(here))
    seen = []
    for comment, state in ((ours, "RUNNING"), (ours, "COMPLETED"), ("another's", "RUNNING")):
        slurm = Controller(comment, state)
        monkeypatch.setattr(queued, "Slurm", lambda retry_seconds, slurm=slurm: slurm)
        seen.append(queued.job_now(here, folder)[1:])
    assert seen == [("RUNNING", ""), ("none", "no job in the queue"), ("none", "no job in the queue")]


def test_stop_before_training_ends_the_chain_at_its_fabric_job(here, monkeypatch):
    slurm = Queue(here, ["77"])
    monkeypatch.setattr(stop, "Slurm", lambda: slurm)
    assert "fabric job 77 is cancelled" in stop.stop(here)
    assert slurm.cancelled == ["77"]


def test_stop_before_any_job_of_ours_says_what_goes_on(here, monkeypatch):
    monkeypatch.setattr(stop, "Slurm", lambda: Queue(here, []))
    assert "end its Snakemake (Ctrl-C)" in stop.stop(here)


def test_logs_of_an_empty_ledger_say_that_no_attempt_has_started(local):
    frozen_folder(local, write_inputs(local)).ledger.touch()
    with pytest.raises(InputError, match="is without an attempt: no training job is alive"):
        list(logs.lines(local))


def test_logs_of_a_job_that_waits_say_how_it_stands(here, monkeypatch):
    monkeypatch.setattr(queued, "Slurm", lambda **_: Queue(here, ["15"], "train"))
    with pytest.raises(InputError, match=r"is without an attempt: job 15 is PENDING \(Resources\)"):
        list(logs.lines(here))


def test_logs_of_a_job_that_slurm_does_not_speak_of_claim_nothing(here, monkeypatch):
    def away(**_):
        raise ClusterError("Slurm is away")

    monkeypatch.setattr(queued, "Slurm", away)
    with pytest.raises(InputError, match=r"is without an attempt: a job is UNKNOWN \(Slurm is away\)"):
        list(logs.lines(here))


def test_an_attempt_without_a_log_says_why(local):
    folder = frozen_folder(local, write_inputs(local))
    attempt(folder, 1)
    with pytest.raises(InputError, match="log of attempt 1 must be there, is missing: its ranks have not written yet"):
        list(logs.lines(local))
    attempt(folder, 2, Ending.JOB_ERROR, Action.STOP)
    for follow in (False, True):
        with pytest.raises(InputError, match=r"missing: no rank was started \(job_error: because\)"):
            list(logs.lines(local, follow))
