"""How a run's training job stands in the queue now. An edge."""

from __future__ import annotations

from steelrail.artifacts.files import results_folder
from steelrail.artifacts.trainer import RunFolder
from steelrail.clients.slurm import Slurm, user_name
from steelrail.config.schema import Run
from steelrail.errors import SteelrailError
from steelrail.formats.squeue import parse_identity
from steelrail.launch.jobs import JobLine, read_jobs
from steelrail.launch.request import folder_digest, job_name


def job_now(run: Run, folder: RunFolder | None) -> tuple[JobLine | None, str, str]:
    """Return a run's training job, its state in Slurm's words (``none``: in no queue) and Slurm's reason for that."""
    known = read_jobs(folder) if folder else ()
    last = known[-1] if known else None
    if run.slurm.executor == "local":
        return last, "RUNNING" if last and last.process_lives() else "none", ""
    try:
        rows = Slurm(retry_seconds=5.0).queue(user_name(), job_name(run.name, "train"))
    except SteelrailError as error:
        return last, "UNKNOWN", str(error)
    mine = folder_digest(results_folder(run))
    for row in rows:
        identity = parse_identity(row.comment)
        if identity is not None and identity.folder in ("", mine):
            line = next((one for one in known if one.job_id == row.job_id), None)
            return (
                line or JobLine(row.job_id, 0.0, "", "", "", None),
                row.state,
                "" if row.reason == "None" else row.reason,
            )
    return last, *_by_number(last, mine)


def _by_number(last: JobLine | None, folder: str) -> tuple[str, str]:
    """State and reason of the job that was submitted last: whoever asks may be another user than it belongs to."""
    try:
        view = Slurm(retry_seconds=5.0).job(last.job_id) if last is not None and not last.local else None
    except SteelrailError as error:
        return "UNKNOWN", str(error)
    identity = parse_identity(view.comment) if view is not None and not view.final else None
    # Slurm counts anew from 1 some day: a number alone is no job of ours.
    if view is None or identity is None or identity.folder not in ("", folder):
        return "none", "no job in the queue"
    return view.state, "" if view.reason == "None" else view.reason


def job_words(run: Run, folder: RunFolder | None) -> str:
    """Return how the job stands, for a sentence."""
    line, state, reason = job_now(run, folder)
    if state == "none":
        return "no training job is alive"
    name = "a job" if line is None else f"job {line.job_id}"
    return f"{name} is {state}" + (f" ({reason})" if reason else "")
