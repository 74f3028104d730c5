import pytest
import submitit
from rundir import attempt, frozen_folder, rank_did, write_inputs

from steelrail.artifacts.files import read_artifact
from steelrail.artifacts.shards import ShardsManifest
from steelrail.artifacts.train import Ending
from steelrail.clients.holder import this_process
from steelrail.errors import BusyError, ConfigError, InputError, StoppedError
from steelrail.launch import edge, submit
from steelrail.launch.freeze import run_folder
from steelrail.launch.jobs import JobLine, add_job, read_jobs
from steelrail.launch.policy import Action


@pytest.fixture
def local(here, change):
    return change(here, "slurm", executor="local")


def test_a_finished_run_is_returned_at_once_and_nothing_is_submitted(local, monkeypatch):
    monkeypatch.setattr(submit, "submit_new", lambda *_: pytest.fail("submitted"))
    folder = frozen_folder(local, write_inputs(local))
    attempt(folder, 1, Ending.DONE, Action.FINISH)
    rank_did(folder, 1, [1, 2], durable=[2])
    first = edge.train(local)
    # The record is there now; it also counts after its ledger is gone.
    folder.ledger.unlink()
    assert edge.train(local) == first
    assert first.final_step == 2


def test_a_finished_run_submitted_from_python_is_a_job_that_is_done(local, monkeypatch):
    monkeypatch.setattr(submit, "submit_new", lambda *_: pytest.fail("submitted"))
    folder = frozen_folder(local, write_inputs(local))
    attempt(folder, 1, Ending.DONE, Action.FINISH)
    rank_did(folder, 1, [1, 2], durable=[2])
    job = submit.submit(local)
    assert (job.done(), job.state, job.result().final_step, job.exception()) == (True, "COMPLETED", 2, None)


def test_a_living_job_of_the_same_key_is_attached_to(local, monkeypatch):
    monkeypatch.setattr(submit, "submit_new", lambda *_: pytest.fail("submitted"))
    folder = frozen_folder(local, write_inputs(local))
    add_job(folder, JobLine("77", 0.0, "", "", "", this_process().text()))
    job = submit.submit(local)
    assert (job.job_id, job.done(), job.state) == ("77", False, "RUNNING")


def test_a_living_job_of_another_key_refuses_this_one(local, change):
    folder = frozen_folder(local, write_inputs(local))
    add_job(folder, JobLine("77", 0.0, "", "", "", this_process().text()))
    other = change(local, "train", seed=99)
    with pytest.raises(BusyError, match="live job of run demo"):
        submit.submit(other)
    assert [path.name for path in folder.root.parent.iterdir()] == [folder.root.name]


def test_a_dead_local_job_is_not_attached_to(local, monkeypatch):
    monkeypatch.setattr(submit, "submit_new", lambda run, inputs, folder, chosen: "new")
    folder = frozen_folder(local, write_inputs(local))
    add_job(folder, JobLine("77", 0.0, "", "", "", f"{this_process().host}:4194305:1"))
    assert submit.submit(local) == "new"


def test_weights_that_do_not_fit_are_refused_before_anything_is_frozen_or_submitted(local, change, tmp_path):
    (tmp_path / "weights").mkdir()
    run = change(local, "train", init_from=str(tmp_path / "weights"))
    inputs = write_inputs(run)
    with pytest.raises(InputError, match="weights must be a safetensors file"):
        submit.submit(run)
    folder = run_folder(run, inputs.key)
    assert not folder.frozen_run.exists() and read_jobs(folder) == ()


def test_a_driver_whose_snakemake_died_ends_and_leaves_the_job(local, monkeypatch):
    from steelrail.clients.holder import Holder

    folder = frozen_folder(local, write_inputs(local))
    add_job(folder, JobLine("77", 0.0, "", "", "", this_process().text()))
    with pytest.raises(StoppedError, match="run it again to attach"):
        edge.train(local, Holder(this_process().host, 4194305, 1))
    assert len(read_jobs(folder)) == 1


def test_the_executor_handed_in_decides_where_the_job_runs(demo, tmp_path):
    executor = submitit.AutoExecutor(tmp_path, cluster="local")
    assert submit.for_executor(demo, executor).slurm.executor == "local"
    assert submit.for_executor(demo, None) == demo


def test_an_executor_that_is_neither_slurm_nor_local_is_refused(demo, tmp_path):
    with pytest.raises(ConfigError, match="submitit's slurm or local one, is debug"):
        submit.for_executor(demo, submitit.AutoExecutor(tmp_path, cluster="debug"))


def test_the_job_says_what_ended_the_run_without_raising_it(local):
    folder = frozen_folder(local, write_inputs(local))
    add_job(folder, JobLine("77", 0.0, "", "", "", f"{this_process().host}:4194305:1"))
    attempt(folder, 1, Ending.STOPPED, Action.STOP)
    job = submit.SteelrailJob(local, write_inputs(local), folder, read_jobs(folder)[-1])
    assert job.done()
    assert isinstance(job.exception(), StoppedError)
    with pytest.raises(StoppedError):
        job.result()


def test_the_job_is_one_of_submitits_and_knows_its_logs(local):
    folder = frozen_folder(local, write_inputs(local))
    folder.log(1).parent.mkdir()
    folder.log(1).write_text("0: line\n")
    job = submit.SteelrailJob(local, write_inputs(local), folder, JobLine("77", 0.0, "", "", "", None))
    assert isinstance(job, submitit.Job)
    assert job.paths.stdout.name == "77_0_log.out"
    assert job.attempt_logs() == [folder.log(1)]


PRICE = """
  - {{provider: acme, sku: box, gpu: h100-sxm, gpus: 8, region: r, mode: on-demand, usd_h: '{usd}',
     effective_from: {day}, read_on: {day}, source: acme, trust: high}}
"""


def test_a_job_that_goes_on_with_a_key_keeps_the_price_of_the_day_on_which_training_began(local, change, tmp_path):
    rows = PRICE.format(usd="16", day="1970-01-01") + PRICE.format(usd="24", day="2020-01-01")
    (tmp_path / "1970-01.yaml").write_text(f"version: 1\nprices:{rows}")
    run = change(local, "cost", price_book=str(tmp_path), provider="acme", sku="box")
    inputs = write_inputs(run)
    folder = run_folder(run, inputs.key)
    assert submit._freeze(run, inputs, folder).usd_per_gpu_hour == "3"
    attempt(folder, 1, Ending.JOB_ERROR, Action.STOP)  # it began 1,000 s after 1970
    assert submit._freeze(run, inputs, folder).usd_per_gpu_hour == "2"


def test_a_job_keeps_the_data_that_it_was_submitted_with_though_the_runs_are_made_anew(local):
    inputs = write_inputs(local, "one")
    folder = run_folder(local, inputs.key)
    submit._freeze(local, inputs, folder)
    write_inputs(local, "two")
    assert read_artifact(folder.shards_manifest, ShardsManifest).data_digest == "one"
