"""The fabric stage's job: submitted through submitit, whole nodes, once; then judged on the head. An edge."""

from __future__ import annotations

import os
import shlex
import sys
import uuid
from pathlib import Path

import submitit
from submitit.core.utils import FailedJobError, environment_variables

from steelrail import log
from steelrail.artifacts.fabric import FabricReport
from steelrail.artifacts.files import write_whole
from steelrail.artifacts.jobs import NotedJob, note_job
from steelrail.artifacts.trainer import EXIT_DONE, EXIT_HUNG, RunFolder
from steelrail.clients import clock
from steelrail.clients.disk import private_folder
from steelrail.clients.holder import Holder
from steelrail.clients.ranks import MASTER_ADDR, MASTER_PORT, free_port
from steelrail.clients.slurm import Slurm, clean_environment, user_name
from steelrail.config.keys import fabric_key
from steelrail.config.schema import Run
from steelrail.errors import ClusterError, StoppedError, must
from steelrail.fabric import edge as fabric_stage
from steelrail.fabric.folder import JobFolder, fabric_folder
from steelrail.launch.allocation import Allocation, SlurmAllocation
from steelrail.launch.attach import live_job
from steelrail.launch.attend import Sight, look
from steelrail.launch.checks import check_partition
from steelrail.launch.freeze import freeze_code, results_folder
from steelrail.launch.jobs import JobLine, add_job, read_jobs
from steelrail.launch.local import LocalAllocation
from steelrail.launch.lock import only_driver
from steelrail.launch.request import fabric_request, show, submitit_parameters, with_setup

_log = log.logger(__name__)
_TRIES = 2
# For ranks to go once they were ended, and for the start of the next.
_END_SECONDS = 30.0


def fabric(run: Run, parent: Holder | None = None) -> FabricReport:
    """Submit the fabric job (or attach to the one that is there), wait, judge, and return the report, written last.

    Raises ``FabricError`` when nodes are unfit or the ranks left nothing, ``ClusterError`` when Slurm cannot give them.
    """
    private_folder(results_folder(run))
    with only_driver(results_folder(run), run.name):
        line, root = _attach(run) or _submit(run)
        sight = _wait(run, line, parent)
        if sight.word == "CANCELLED":
            do = "run fabric again"
            raise StoppedError(must("the fabric job", "run to its end", f"cancelled (job {line.job_id})", root, do))
        return fabric_stage.finish(run, root, line.job_id)


def run_ranks(root: str) -> int:
    """Start the ranks on the batch host and return their exit code; ranks that hang are started once more.

    Called by submitit. Each of the two tries has just under half of the job's time: a fabric job never hangs for good.
    """
    os.umask(0o077)
    log.configure()
    run = Run.model_validate_json(JobFolder(Path(root)).run_file.read_bytes())
    local = os.environ.get("SUBMITIT_EXECUTOR") == "local"
    allocation: Allocation = LocalAllocation.here(run) if local else SlurmAllocation.here(run, Slurm())
    seconds = max(_END_SECONDS, run.slurm.fabric_minutes * 60 / _TRIES - _END_SECONDS)
    for _ in range(_TRIES):
        code = _try_ranks(run, root, allocation, seconds)
        if code is not None:
            return code
        _log.warning("the fabric ranks hung for %.0f s: ended", seconds)
    return EXIT_HUNG


def _try_ranks(run: Run, root: str, allocation: Allocation, seconds: float) -> int | None:
    """Return the exit code of the ranks, or none when they were ended after ``seconds`` and had left no report."""
    own = {
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(run.slurm.cpus_per_rank),
        MASTER_ADDR: allocation.nodes()[0],
        MASTER_PORT: str(free_port()),
        **run.slurm.environment,
    }
    argv = [sys.executable, "-u", "-m", "steelrail.fabric.rank", root]
    ranks = allocation.start(argv, own, "fabric", Path(root) / "ranks.log")
    give_up = clock.monotonic() + seconds
    while (code := ranks.poll()) is None and clock.monotonic() < give_up:
        clock.sleep(0.2)
    if code is not None:
        return code
    ranks.kill()
    while ranks.poll() is None and clock.monotonic() < give_up + _END_SECONDS:
        clock.sleep(0.2)
    # A rank may hang on its way out, with all said.
    return EXIT_DONE if JobFolder(Path(root)).report.exists() else None


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


def _submit(run: Run) -> tuple[JobLine, Path]:
    root = fabric_folder(str(Path(run.results).absolute()), run.name) / "jobs" / uuid.uuid4().hex[:12]
    for part in (root.parent.parent, root.parent, root):
        private_folder(part)
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
