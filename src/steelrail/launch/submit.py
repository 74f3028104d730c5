"""Submitting the training job: checks, freezing, submitit; or attaching to the job that is there. An edge."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, environment_variables

from steelrail import log
from steelrail.artifacts.files import results_folder, write_artifact
from steelrail.artifacts.train import TrainRecord
from steelrail.artifacts.trainer import RunFolder
from steelrail.clients import clock
from steelrail.clients.disk import private_folder
from steelrail.clients.holder import Holder
from steelrail.clients.process import start_ticks
from steelrail.clients.slurm import Slurm, clean_environment, user_name
from steelrail.clients.store_requests import note_answered
from steelrail.config.prices import price_for, usd_per_gpu_hour
from steelrail.config.schema import Run
from steelrail.errors import BusyError, ClusterError, ConfigError, must
from steelrail.launch import ledger, supervise
from steelrail.launch.attach import live_job
from steelrail.launch.budget import check_budget
from steelrail.launch.checks import check_init, check_memory, check_partition
from steelrail.launch.finished import finished
from steelrail.launch.freeze import Frozen, freeze, run_folder
from steelrail.launch.inputs import Inputs, check_inputs, left_out, read_inputs, receipt_warnings
from steelrail.launch.job import SteelrailJob
from steelrail.launch.jobs import JobLine, add_job, living_local_jobs, read_jobs, submitit_folder
from steelrail.launch.lead import check_lead
from steelrail.launch.lock import only_driver
from steelrail.launch.plan import show_plan
from steelrail.launch.probes import probe_store
from steelrail.launch.request import (
    Request,
    extra_parameters,
    show_start,
    submitit_parameters,
    train_request,
    with_choices,
    with_setup,
)

_log = log.logger(__name__)


def submit(run: Run, executor: submitit.Executor | None = None) -> SteelrailJob:
    """Submit the training job of ``run``, or attach to the one that is there, and return it at once.

    Works on a login node, inside another Slurm job, and with the local executor. An ``executor`` of the user's own
    brings his Slurm parameters (partition, account, time, dependency, ...); what the run needs to be right wins.
    Raises ``BusyError`` when another driver or a job of another key lives, ``ClusterError``, ``StoreError`` or
    ``InputError`` when the run cannot start.
    """
    private_folder(results_folder(run))
    run = for_executor(run, executor)
    with only_driver(results_folder(run), run.name):
        inputs = read_inputs(run)
        record = finished(run, inputs)
        if record is not None:
            return _done(run, inputs, record)
        return submit_or_attach(run, inputs, parameters_of(executor))


def submit_or_attach(run: Run, inputs: Inputs, chosen: dict[str, Any]) -> SteelrailJob:
    """As ``submit``, for a caller that holds the run's lock. ``chosen`` are a user's own Slurm parameters."""
    folder = run_folder(run, inputs.key)
    alive = _alive(run, inputs, folder)
    if alive is not None:
        _log.info("run %s: attached to job %s", run.name, alive.job_id)
        return SteelrailJob(run, inputs, folder, alive)
    # Not before: beside a job of another key nothing is left of what was refused.
    for part in (results_folder(run), folder.root.parent, folder.root):
        private_folder(part)
    return submit_new(run, inputs, folder, chosen)


def submit_new(run: Run, inputs: Inputs, folder: RunFolder, chosen: dict[str, Any]) -> SteelrailJob:
    """Check, freeze and submit. No job of the run may be alive."""
    check(run)
    note_answered(results_folder(run), "train", inputs.key)
    check_inputs(run, inputs)
    frozen = _freeze(run, inputs, folder)
    check_budget(run, folder, frozen)
    check_lead(run, folder)
    request = make_request(run, inputs, folder, frozen, chosen)
    _log.info("the request:\n%s", show_start(run, request))
    folder.stop_request.unlink(missing_ok=True)
    job_id, holder = _hand_in(run, folder, frozen, request, chosen)
    line = JobLine(job_id, clock.now(), frozen.code_digest, frozen.config_digest, frozen.environment_digest, holder)
    add_job(folder, line)
    how = "submitted" if holder is None else "started local"
    _log.info("run %s: %s job %s, key %s, code %s", run.name, how, job_id, inputs.key, frozen.code_digest)
    return SteelrailJob(run, inputs, folder, line)


def check(run: Run) -> None:
    """Check what can be checked before anything is spent: memory, weights, receipt, partition, accounting, store."""
    for warning in [*check_memory(run), *check_init(run), *receipt_warnings(run)]:
        _log.warning("%s", warning)
    if run.slurm.executor == "slurm":
        slurm = Slurm()
        for warning in check_partition(run, slurm.partition(run.slurm.partition), slurm.partitions()):
            _log.warning("%s", warning)
        if not slurm.has_accounting():
            _log.warning("this Slurm keeps no accounts (sacct): the run's cost will be unavailable")
    probe_store(run)


def make_request(run: Run, inputs: Inputs, folder: RunFolder, frozen: Frozen, chosen: dict[str, Any]) -> Request:
    """Return the request as it is submitted: the run's, a user's choices, and the frozen code on the path."""
    request = train_request(run, inputs.key, results_folder(run), left_out(run), os.environ)
    return with_choices(with_setup(request, [f"export PYTHONPATH={shlex.quote(frozen.code)}"]), chosen)


def for_executor(run: Run, executor: submitit.Executor | None) -> Run:
    """Return the run with the executor's own kind (Slurm or local)."""
    if executor is None:
        return run
    kind = _inner(executor).name()
    if kind not in ("slurm", "local"):
        raise ConfigError(must("executor", "submitit's slurm or local one", kind, "submit()", "hand in one of those"))
    if kind == "local" and run.slurm.container is not None:
        do = "remove it, or hand in a Slurm executor"
        raise ConfigError(must("slurm.container", "left out for a local executor", "given", "submit()", do))
    return run.model_copy(update={"slurm": run.slurm.model_copy(update={"executor": kind})})


def parameters_of(executor: submitit.Executor | None) -> dict[str, Any]:
    """Return the Slurm parameters that a user's executor holds, in submitit's names for Slurm."""
    return {} if executor is None else dict(_inner(executor).parameters)


def _inner(executor: Any) -> Any:
    return getattr(executor, "_executor", executor)


def _done(run: Run, inputs: Inputs, record: TrainRecord) -> SteelrailJob:
    folder = run_folder(run, inputs.key)
    unknown = JobLine(record.job_ids[-1] if record.job_ids else "0", 0.0, "", "", "", None)
    return SteelrailJob(run, inputs, folder, (read_jobs(folder) or (unknown,))[-1], record)


def _alive(run: Run, inputs: Inputs, folder: RunFolder) -> JobLine | None:
    if run.slurm.executor == "local":
        return _alive_locally(run, inputs)
    job_id = live_job(Slurm(), user_name(), run.name, "train", inputs.key, results_folder(run))
    if job_id is None:
        return None
    known = [line for line in read_jobs(folder) if line.job_id == job_id]
    # A driver killed between sbatch and its own note leaves a job that only Slurm knows.
    return known[0] if known else JobLine(job_id, clock.now(), "", "", "", None)


def _alive_locally(run: Run, inputs: Inputs) -> JobLine | None:
    for folder, line in living_local_jobs(run):
        root = folder.root
        if root.name == inputs.key:
            return line
        do = f"wait for it, or end process {line.job_id}"
        raise BusyError(must(f"live job of run {run.name}", f"of key {inputs.key}", root.name, root, do))
    return None


def _freeze(run: Run, inputs: Inputs, folder: RunFolder) -> Frozen:
    # The bill takes the price of the day on which training began.
    began = min((entry.segment_started for entry in ledger.read(folder)), default=clock.now())
    price = price_for(run, began) if run.shape.num_gpus else None
    rate = None if price is None else str(usd_per_gpu_hour(price))
    before = read_jobs(folder)
    frozen = freeze(folder, run, rate)
    write_artifact(folder.shards_manifest, inputs.manifest)
    if before and before[-1].code_digest != frozen.code_digest:
        _log.info("key %s goes on with the present code %s", inputs.key, frozen.code_digest)
        _log.info("earlier attempts of it used %s", before[-1].code_digest or "unknown code")
    _log.info("the plan:\n%s", show_plan(run, inputs, None if rate is None else Decimal(rate)))
    return frozen


def _hand_in(
    run: Run, folder: RunFolder, frozen: Frozen, request: Request, chosen: dict[str, Any]
) -> tuple[str, str | None]:
    """Give the job to submitit; return its id and, for a local job, the process that holds it."""
    private_folder(submitit_folder(folder))
    with clean_environment(), _closed_to_others():
        if run.slurm.executor == "local":
            return _hand_in_locally(run, folder, frozen)
        executor = submitit.SlurmExecutor(submitit_folder(folder))
        executor.update_parameters(**submitit_parameters(request, extra_parameters(chosen)))
        try:
            return executor.submit(supervise.main, str(folder.root)).job_id, None
        except FailedJobError as error:
            said = " ".join(str(error).split())[:400]
            do = "mend what it names (partition, account, QOS, time)"
            raise ClusterError(must("sbatch", "accepted by Slurm", f"refused ({said})", "request above", do)) from error


def _hand_in_locally(run: Run, folder: RunFolder, frozen: Frozen) -> tuple[str, str | None]:
    executor = submitit.LocalExecutor(submitit_folder(folder))
    # Minutes of a year: a local job has no limit of its own, and submitit's default is five minutes.
    executor.update_parameters(timeout_min=525_600, setup=list(run.slurm.setup))
    with environment_variables(PYTHONPATH=frozen.code):
        job = executor.submit(supervise.main, str(folder.root))
    return job.job_id, local_holder(job.job_id)


def local_holder(job_id: str) -> str:
    """Return what tells the process of a local job from a later one of the same number."""
    return Holder(socket.gethostname(), int(job_id), start_ticks(int(job_id)) or 0).text()


@contextlib.contextmanager
def _closed_to_others() -> Iterator[None]:
    """submitit leaves scripts, pickles and logs open to the world's eyes."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
