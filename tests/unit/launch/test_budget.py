"""The budget counts what the bill will count: the same jobs, the same segments, the same rounding."""

import sys
from pathlib import Path

import pytest
from rundir import attempt, frozen_folder, write_inputs

from steelrail.artifacts.jobs import NotedJob, note_job
from steelrail.artifacts.train import Ending
from steelrail.artifacts.trainer import RunFolder
from steelrail.clients import clock
from steelrail.config.keys import fabric_key
from steelrail.cost import edge
from steelrail.errors import ClusterError, StoppedError
from steelrail.launch import budget
from steelrail.launch.budget import Accounts, check_budget, overspent
from steelrail.launch.freeze import Frozen
from steelrail.launch.jobs import JobLine, add_job
from steelrail.launch.policy import Action
from steelrail.launch.spend import spent_micro_usd

sys.path.insert(0, str(Path(__file__).parents[1] / "cost"))
import synthetic

FOREVER = 4e9
FROZEN = Frozen("", "", "", "", "3.99")


@pytest.fixture
def built(tmp_path, monkeypatch):
    monkeypatch.setattr(edge, "render", lambda page: "")
    story = synthetic.build(tmp_path)
    add_job(folder_of(story), JobLine("101", 0.0, "", "", "", None))
    return story


def folder_of(story):
    return RunFolder(Path(story.run.results) / story.run.name / "train" / synthetic.KEY)


def so_far(story, now=FOREVER):
    accounts = Accounts(story.run, folder_of(story), story.slurm)
    return spent_micro_usd(story.run, accounts.paid(now), "3.99"), accounts.fault


def test_at_the_end_the_budget_has_counted_what_the_bill_says_to_the_micro_dollar(built):
    assert so_far(built) == (edge.run_stage(built.run, built.slurm).total_micro_usd, None)


def test_shards_and_fabric_count_those_that_failed_too(built):
    before, _ = so_far(built)
    (good,) = [line for line in built.slurm.text.splitlines() if line.startswith("100|")]
    built.slurm.text += good.replace("100|", "95|", 1).replace("|COMPLETED|", "|FAILED|") + "\n"
    note_job(Path(built.run.results) / built.run.name, NotedJob("fabric", synthetic.KEY, "95"))
    after, _ = so_far(built)
    assert after > before
    assert after == edge.run_stage(built.run, built.slurm).total_micro_usd


def test_a_segment_that_runs_costs_what_it_would_cost_if_it_ended_now(built):
    lines = built.slurm.text.splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith("101|"))
    fields = dict(zip(synthetic.SACCT_FIELDS, lines[last].split("|", len(synthetic.SACCT_FIELDS) - 1), strict=True))
    now = int(fields["End"]) - 100

    def with_last(**changes):
        lines[last] = "|".join({**fields, **changes}[name] for name in synthetic.SACCT_FIELDS)
        return "\n".join(lines) + "\n"

    built.slurm.text = with_last(State="RUNNING", End="Unknown")
    running, _ = so_far(built, float(now))
    built.slurm.text = with_last(End=str(now))
    assert running == so_far(built)[0]


def test_accounts_are_asked_for_soon_then_once_a_minute_and_the_clock_counts_between(built, monkeypatch):
    built.slurm.text = built.slurm.text.replace("|COMPLETED|", "|RUNNING|")
    at = [0.0]
    monkeypatch.setattr(clock, "monotonic", lambda: at[0])
    accounts = Accounts(built.run, folder_of(built), built.slurm)
    asked = []
    for second in range(200):
        at[0], before = float(second), built.slurm.calls
        accounts.paid(FOREVER)
        asked += [second] * (built.slurm.calls - before)
    assert asked == [0, 5, 15, 35, 75, 135, 195]


def test_a_row_that_had_no_gpus_yet_is_read_again_before_a_budget_is_overrun(built, monkeypatch):
    whole = built.slurm.text.replace("|COMPLETED|", "|RUNNING|")
    at = [0.0]
    monkeypatch.setattr(clock, "monotonic", lambda: at[0])
    built.slurm.text = whole.replace("gres/gpu=64,", "").replace("gres/gpu=80,", "")
    accounts = Accounts(built.run, folder_of(built), built.slurm)
    assert not any(one.gpus for one in accounts.paid(FOREVER) if one.stage == "train")
    built.slurm.text, at[0] = whole, 5.0
    assert all(one.gpus >= 64 for one in accounts.paid(FOREVER) if one.stage == "train")


class Away:
    """Slurm that answers once, then no more."""

    def __init__(self, slurm, answers=0):
        self.slurm, self.answers = slurm, answers

    def accounts(self, job_ids):
        self.answers -= 1
        if self.answers < 0:
            raise ClusterError("slurmdbd is away")
        return self.slurm.accounts(job_ids)


def test_while_accounts_are_away_the_last_word_stands_and_that_is_said(built, monkeypatch, caplog):
    at = [0.0]
    monkeypatch.setattr(clock, "monotonic", lambda: at[0])
    run = built.run.model_copy(update={"cost": built.run.cost.model_copy(update={"budget_usd": "100"})})
    accounts = Accounts(run, folder_of(built), Away(built.slurm, 1))
    first = accounts.paid(FOREVER)
    for at[0] in (100.0, 200.0):
        assert accounts.paid(FOREVER) == first
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "the budget counts as last read: slurmdbd is away"
    ]


def test_without_accounts_the_training_job_alone_counts_and_that_is_said(here, change, caplog):
    run = change(here, "cost", budget_usd="1000")
    folder = frozen_folder(run, write_inputs(run))
    attempt(folder, 1, Ending.STOPPED, Action.STOP)
    note_job(Path(run.results) / run.name, NotedJob("fabric", fabric_key(run), "12"))
    accounts = Accounts(run, folder, Away(None))
    paid = accounts.paid(FOREVER, running=False)
    assert [(one.stage, one.gpus) for one in paid] == [("train", 64)]
    assert accounts.fault == "slurmdbd is away"
    assert "for the training job alone, without shards and fabric: slurmdbd is away" in caplog.text


def test_a_local_run_asks_no_slurm(here):
    folder = frozen_folder(here, write_inputs(here))
    accounts = Accounts(here, folder, None)
    assert (accounts.paid(FOREVER), accounts.fault) == ((), budget.NO_SLURM)


def test_a_local_jobs_process_is_not_looked_for_in_slurm(here):
    folder = frozen_folder(here, write_inputs(here))
    add_job(folder, JobLine("4711", 0.0, "", "", "", "host:4711:1"))
    add_job(folder, JobLine("15", 0.0, "", "", "", None))
    assert budget._jobs(here, folder) == {"15": "train"}


@pytest.mark.parametrize(("usd", "spent"), [("41.0", True), ("42.0", False), (None, False)])
def test_the_budget_is_spent_when_the_whole_run_has_cost_it(built, usd, spent):
    total = edge.run_stage(built.run, built.slurm).total_micro_usd
    assert 41_000_000 < total < 42_000_000
    run = built.run.model_copy(update={"cost": built.run.cost.model_copy(update={"budget_usd": usd})})
    assert overspent(Accounts(run, folder_of(built), built.slurm), FROZEN) == (total if spent else None)


def test_no_job_is_submitted_to_find_its_budget_spent(built, monkeypatch):
    monkeypatch.setattr(budget, "Slurm", lambda: built.slurm)
    run = built.run.model_copy(update={"cost": built.run.cost.model_copy(update={"budget_usd": "41"})})
    with pytest.raises(StoppedError, match=r"budget of run synthetic must be above the \$41\.\d\d .* is \$41 "):
        check_budget(run, folder_of(built), FROZEN)
    check_budget(built.run, folder_of(built), FROZEN)
