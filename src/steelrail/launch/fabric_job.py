"""The fabric stage's job: submitted through submitit, judged on the head, once more without unfit nodes. An edge."""

from __future__ import annotations

import os
import shlex
import uuid
from decimal import Decimal
from pathlib import Path

import submitit
from submitit.core.utils import FailedJobError, environment_variables

from steelrail import log
from steelrail.artifacts.fabric import FabricReport
from steelrail.artifacts.files import results_folder, write_artifact, write_whole
from steelrail.artifacts.jobs import NotedJob, note_job
from steelrail.artifacts.trainer import RunFolder
from steelrail.clients import clock
from steelrail.clients.disk import private_folder
from steelrail.clients.holder import Holder
from steelrail.clients.slurm import Slurm, clean_environment, user_name
from steelrail.config.keys import fabric_key
from steelrail.config.prices import price_for, usd_per_gpu_hour
from steelrail.config.schema import Run
from steelrail.errors import ClusterError, ConfigError, StoppedError, must
from steelrail.fabric import edge as fabric_stage
from steelrail.fabric.folder import JobFolder, fabric_folder
from steelrail.launch.attach import live_job
from steelrail.launch.attend import Sight, look
from steelrail.launch.checks import check_partition
from steelrail.launch.fabric_ranks import run_ranks
from steelrail.launch.freeze import freeze_code
from steelrail.launch.jobs import JobLine, add_job, read_jobs
from steelrail.launch.lock import only_driver
from steelrail.launch.request import fabric_request, show, submitit_parameters, with_setup
from steelrail.launch.spend import usd_per_second
from steelrail.launch.unfit import fitting_others, leaving_out, say_replaced, say_too_few

_log = log.logger(__name__)


def fabric(run: Run, parent: Holder | None = None) -> FabricReport:
    """Submit the fabric job (or attach to the one that is there), wait, judge, and return the report, written last.

    Nodes found unfit are replaced once where the partition has others: the job is submitted again without them. Raises
    ``FabricError`` when nodes are unfit or the ranks left nothing, ``ClusterError`` when Slurm cannot give them.
    """
    private_folder(results_folder(run))
    with only_driver(results_folder(run), run.name):
        report = _measure(run, _attach(run) or _submit(run, None), parent)
        if not report.fit and not report.replaces and _can_replace(run, report):
            report = _measure(run, _submit(run, report), parent)
        return fabric_stage.admit(run, report)


def _measure(run: Run, job: tuple[JobLine, Path], parent: Holder | None) -> FabricReport:
    """Wait for a job and return the report on it, not yet admitted."""
    line, root = job
    sight = _wait(run, line, parent)
    if sight.word == "CANCELLED":
        do = "run fabric again"
        raise StoppedError(must("the fabric job", "run to its end", f"cancelled (job {line.job_id})", root, do))
    return fabric_stage.judge_job(run, root, line.job_id)


def _can_replace(run: Run, report: FabricReport) -> bool:
    """Return whether other nodes can take the unfit ones' place, and say what is done about it and what it costs."""
    if run.slurm.executor == "local" or not report.exclude:
        return False
    others = fitting_others(run, Slurm().partition(run.slurm.partition), report.exclude)
    if len(others) < run.shape.nodes:
        _log.warning("%s", say_too_few(run, report, others))
        return False
    _log.warning("%s", say_replaced(run, report, others, _usd_per_second(run)))
    return True


def _usd_per_second(run: Run) -> Decimal | None:
    """Return what the nodes cost, or none: a price book with a fault must not keep nodes from being replaced."""
    try:
        rate = str(usd_per_gpu_hour(price_for(run, clock.now()))) if run.shape.num_gpus else None
    except ConfigError as error:
        _log.warning("the cost is not known: %s", error)
        return None
    # The fabric job asks for no spares.
    return usd_per_second(run.model_copy(update={"slurm": run.slurm.model_copy(update={"spare_nodes": 0})}), rate)


def _attach(run: Run) -> tuple[JobLine, Path] | None:
    if run.slurm.executor == "local":
        return None
    job_id = live_job(Slurm(), user_name(), run.name, "fabric", fabric_key(run), results_folder(run))
    if job_id is None:
        return None
    line = next((one for one in read_jobs(_lines(run)) if one.job_id == job_id), None)
    if line is None:
        do = f"scancel {job_id} and run fabric again"
        raise ClusterError(must("the fabric job", "one of ours", f"job {job_id}, of an unknown folder", "squeue", do))
    _log.info("attached to fabric job %s", job_id)
    return line, Path(line.folder)


def _submit(run: Run, before: FabricReport | None) -> tuple[JobLine, Path]:
    """Submit a job; ``before`` is the report of one whose unfit nodes it leaves out."""
    root = fabric_folder(run).absolute() / "jobs" / uuid.uuid4().hex[:12]
    for part in (root.parent.parent, root.parent, root):
        private_folder(part)
    if before is not None:
        run = leaving_out(run, before.exclude)
        write_artifact(JobFolder(root).before, before)
    write_whole(JobFolder(root).run_file, run.model_dump_json(indent=1).encode())
    code = root.parent.parent / "code"
    snapshot = code / freeze_code(code)
    job_id, holder = _hand_in(run, root, snapshot)
    line = JobLine(job_id, clock.now(), snapshot.name, "", "", holder, str(root))
    add_job(_lines(run), line)
    note_job(results_folder(run), NotedJob("fabric", fabric_key(run), job_id))
    _log.info("submitted fabric job %s", job_id)
    return line, root


def _hand_in(run: Run, root: Path, code: Path) -> tuple[str, str | None]:
    before = os.umask(0o077)
    try:
        with clean_environment():
            if run.slurm.executor == "local":
                return _hand_in_locally(run, root, code)
            return _hand_in_to_slurm(run, root, code), None
    finally:
        os.umask(before)


def _hand_in_to_slurm(run: Run, root: Path, code: Path) -> str:
    slurm = Slurm()
    for warning in check_partition(run, slurm.partition(run.slurm.partition), slurm.partitions()):
        _log.warning("%s", warning)
    request = fabric_request(run, fabric_key(run), results_folder(run), os.environ)
    request = with_setup(request, [f"export PYTHONPATH={shlex.quote(str(code))}"])
    _log.info("the request:\n%s", show(request))
    executor = submitit.SlurmExecutor(root)
    executor.update_parameters(**submitit_parameters(request))
    try:
        return str(executor.submit(run_ranks, str(root)).job_id)
    except FailedJobError as error:
        said = " ".join(str(error).split())[:400]
        raise ClusterError(
            must("sbatch", "accepted by Slurm", f"refused ({said})", "request above", "mend it")
        ) from error


def _hand_in_locally(run: Run, root: Path, code: Path) -> tuple[str, str]:
    from steelrail.launch.submit import local_holder

    executor = submitit.LocalExecutor(root)
    executor.update_parameters(timeout_min=run.slurm.fabric_minutes, setup=list(run.slurm.setup))
    with environment_variables(PYTHONPATH=str(code)):
        job = executor.submit(run_ranks, str(root))
    return job.job_id, local_holder(job.job_id)


def _wait(run: Run, line: JobLine, parent: Holder | None) -> Sight:
    slurm = None if line.local else Slurm()
    word = ""
    while True:
        sight = look(line, slurm)
        if sight.word != word:
            word = sight.word
            _log.info("fabric job %s is %s %s", line.job_id, word, sight.reason)
        if sight.gone:
            return sight
        if parent is not None and not parent.lives():
            do = "run it again to attach"
            raise StoppedError(must("driver of the fabric job", "under a living Snakemake", "alone", line.job_id, do))
        clock.sleep(run.launch.poll_seconds)


def _lines(run: Run) -> RunFolder:
    return RunFolder(results_folder(run) / "fabric")
