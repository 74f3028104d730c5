"""``steelrail stop``: save, end, and stay ended until somebody runs train again. An edge."""

from __future__ import annotations

import json
import os
import socket

from steelrail.artifacts.files import results_folder, write_whole
from steelrail.artifacts.trainer import RunFolder
from steelrail.clients import clock
from steelrail.clients.slurm import Slurm, user_name
from steelrail.config.schema import Run
from steelrail.errors import ClusterError
from steelrail.formats.squeue import Identity, QueueRow, parse_identity
from steelrail.launch.jobs import living_local_jobs
from steelrail.launch.request import Stage, folder_digest, job_name


def stop(run: Run) -> str:
    """Ask the live job of a run to save and end; cancel one that only waits. Return what was done, for a reader."""
    if run.slurm.executor == "local":
        return _stop_local(run)
    slurm = Slurm()
    found = _alive(run, slurm, "train")
    if not found:
        return _stop_before_training(run, slurm)
    return "\n".join(_stop_job(run, slurm, row, identity) for row, identity in found)


def _alive(run: Run, slurm: Slurm, stage: Stage) -> list[tuple[QueueRow, Identity]]:
    mine = folder_digest(results_folder(run))
    rows = slurm.queue(user_name(), job_name(run.name, stage))
    return [(row, one) for row in rows if (one := parse_identity(row.comment)) and one.folder in ("", mine)]


def _stop_before_training(run: Run, slurm: Slurm) -> str:
    """Cancel a fabric job, with which its chain ends; say what else may go on and submit a training job later."""
    jobs = [row.job_id for row, _ in _alive(run, slurm, "fabric")]
    for job_id in jobs:
        slurm.cancel(job_id)
    if jobs:
        return f"run {run.name}: fabric job {', '.join(jobs)} is cancelled, and the chain that waits for it ends"
    do = "a chain that is still before training goes on: end its Snakemake (Ctrl-C)"
    return f"run {run.name}: no training job is alive, nothing to stop ({do})"


def request_stop(folder: RunFolder) -> None:
    """Leave the request where the supervisor looks."""
    who = {"host": socket.gethostname(), "uid": os.getuid(), "time": clock.now()}
    write_whole(folder.stop_request, json.dumps(who).encode())


def _stop_job(run: Run, slurm: Slurm, row: QueueRow, identity: Identity) -> str:
    folder = RunFolder(results_folder(run) / "train" / identity.key)
    request_stop(folder)
    try:
        view = slurm.job(row.job_id)
    except ClusterError:
        view = None
    # Nothing runs that could save: a job that waits is ended by Slurm.
    if view is not None and view.state == "PENDING":
        slurm.cancel(row.job_id)
        return f"run {run.name}: job {row.job_id} was waiting and is cancelled"
    return f"run {run.name}: job {row.job_id} was asked to save and end; it stays stopped until train is run again"


def _stop_local(run: Run) -> str:
    alive = living_local_jobs(run)
    for folder, _ in alive:
        request_stop(folder)
    if not alive:
        return f"run {run.name}: no training job is alive, nothing to stop"
    return f"run {run.name}: the local job was asked to save and end"
