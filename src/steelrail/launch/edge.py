"""What the command line calls: train, fabric and plan, from the head to the end. An edge."""

from __future__ import annotations

from dataclasses import dataclass

from steelrail.artifacts.fabric import FabricReport
from steelrail.artifacts.files import results_folder
from steelrail.artifacts.train import TrainRecord
from steelrail.clients import clock
from steelrail.clients.disk import private_folder
from steelrail.clients.holder import Holder
from steelrail.clients.slurm import Slurm
from steelrail.config.prices import price_for, usd_per_gpu_hour
from steelrail.config.schema import Run
from steelrail.errors import InputError, StoppedError, must
from steelrail.launch import attend, fabric_job, ledger
from steelrail.launch.checks import check_init
from steelrail.launch.finished import finished
from steelrail.launch.freeze import run_folder
from steelrail.launch.inputs import Inputs, left_out, read_inputs
from steelrail.launch.job import SteelrailJob
from steelrail.launch.lock import only_driver
from steelrail.launch.plan import show_plan
from steelrail.launch.policy import Action
from steelrail.launch.report import Reporter
from steelrail.launch.request import show_start, train_request
from steelrail.launch.submit import submit_new, submit_or_attach
from steelrail.log import logger

_log = logger(__name__)
_UNKNOWN_KEY = "0" * 12


@dataclass
class _Attended:
    """A job under the driver's eyes."""

    job: SteelrailJob
    slurm: Slurm | None
    since: int


def train(run: Run, parent: Holder | None = None) -> TrainRecord:
    """Submit the training job, or attach to it, wait until it is gone for good, and return the record, written last.

    ``parent`` is who drives us (Snakemake): when it dies we end too, and the job goes on. Raises by ending:
    ``StoppedError`` when stopped, cancelled or at the budget, ``TrainError`` or the rank's own error when it failed,
    ``BusyError`` beside another driver or a job of another key.
    """
    private_folder(results_folder(run))
    with only_driver(results_folder(run), run.name):
        inputs = read_inputs(run)
        found = finished(run, inputs)
        return found if found is not None else _drive(run, inputs, parent)


def fabric(run: Run, parent: Holder | None = None) -> FabricReport:
    """Submit the fabric job, wait, and return the report, written last. See ``launch.fabric_job``."""
    return fabric_job.fabric(run, parent)


def plan(run: Run) -> str:
    """Return the plan and what would start: the Slurm request, or ranks on this host. Submits nothing, needs no Slurm.

    Raises ``InputError`` when the initial weights do not fit the model.
    """
    weights = check_init(run)
    try:
        inputs: Inputs | None = read_inputs(run)
    except InputError:
        inputs = None
    rate = usd_per_gpu_hour(price_for(run, clock.now())) if run.shape.num_gpus else None
    key = inputs.key if inputs else _UNKNOWN_KEY
    names = ("HOME", "USER", "LOGNAME", "PATH", "LANG")
    request = train_request(run, key, results_folder(run), left_out(run), names)
    said = "\n".join([show_plan(run, inputs, rate), *weights])
    return f"{said}\n\n{show_start(run, request)}"


def _drive(run: Run, inputs: Inputs, parent: Holder | None) -> TrainRecord:
    folder = run_folder(run, inputs.key)
    since = len(ledger.read(folder))
    job = submit_or_attach(run, inputs, {})
    while True:
        attended = _Attended(job, None if job.line.local else Slurm(), since)
        sight = _wait(run, attended, parent)
        decision = attend.after(run, folder, attended.slurm, sight, since, job.job_id)
        if decision.action in (Action.FINISH, Action.STOP):
            return attend.conclude(run, inputs, folder, attended.slurm, sight, job.job_id)
        # Slurm did not put it back (a time limit hit before the supervisor could, requeue forbidden): we do.
        _log.warning("job %s is gone (%s): %s; submitting another", job.job_id, sight.word, decision.reason)
        job = submit_new(run, inputs, folder, {})


def _wait(run: Run, attended: _Attended, parent: Holder | None) -> attend.Sight:
    """Return the last sight of a job, once it is gone. Two looks must agree: Slurm may be about to requeue it."""
    reporter = Reporter(run, attended.job.run_folder)
    gone_before = False
    while True:
        sight = attend.look(attended.job.line, attended.slurm)
        if sight.gone and gone_before:
            return sight
        gone_before = sight.gone
        reporter.tell(sight)
        attend.care(run, attended.slurm, sight)
        _require_parent(run, parent)
        clock.sleep(run.launch.poll_seconds)


def _require_parent(run: Run, parent: Holder | None) -> None:
    if parent is not None and not parent.lives():
        do = "run it again to attach"
        where = f"process {parent.pid} on {parent.host}"
        raise StoppedError(must(f"driver of run {run.name}", "under a living Snakemake", "alone", where, do))
