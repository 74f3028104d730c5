"""Attending a submitted job from the head: is it gone, what hastens it, and what it came to. An edge."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from steelrail import errors
from steelrail.artifacts.files import full_error
from steelrail.artifacts.train import Ending, TrainRecord
from steelrail.artifacts.trainer import EXIT_FULL, RunFolder
from steelrail.clients import clock
from steelrail.clients.slurm import Slurm, SlurmAway
from steelrail.config.schema import Run
from steelrail.errors import ClusterError, SteelrailError, StoppedError, TrainError, must
from steelrail.formats.sacct import job_rows, over
from steelrail.formats.scontrol import JobView
from steelrail.launch import ledger
from steelrail.launch.freeze import read_frozen
from steelrail.launch.inputs import Inputs, left_out
from steelrail.launch.jobs import JobLine, read_jobs, submitit_folder
from steelrail.launch.ledger import Entry
from steelrail.launch.policy import ENDED_ON_PURPOSE, Action, Decision, decide
from steelrail.launch.record import write_record
from steelrail.launch.segments import accounts, close_open
from steelrail.log import logger

_log = logger(__name__)

_BY_EXIT_CODE = {
    kind.exit_code: kind
    for kind in (
        errors.ConfigError,
        errors.InputError,
        errors.ClusterError,
        errors.StoreError,
        errors.NodeError,
        errors.FabricError,
        errors.BusyError,
        errors.CheckpointError,
    )
}


@dataclass(frozen=True)
class Sight:
    """A job as seen from the head. ``word`` is Slurm's state, ``UNKNOWN`` when nobody says; unknown is never gone."""

    gone: bool
    word: str
    reason: str = ""
    view: JobView | None = None


def look(line: JobLine, slurm: Slurm | None) -> Sight:
    """Return how a job stands now. Slurm being away makes it unknown, not gone."""
    if line.local or slurm is None:
        return Sight(False, "RUNNING") if line.process_lives() else Sight(True, "COMPLETED")
    try:
        view = slurm.job(line.job_id)
        if view is not None:
            return Sight(view.final, view.state, view.reason, view)
        return _from_accounts(slurm, line.job_id)
    except SlurmAway as error:
        return Sight(False, "UNKNOWN", str(error))


def _from_accounts(slurm: Slurm, job_id: str) -> Sight:
    """The controller answers and has forgotten the job, so it runs no more; only the accounts know how it ended."""
    try:
        rows = job_rows(slurm.accounts([job_id])).get(job_id, ())
    except SlurmAway:
        raise
    except SteelrailError as error:
        return Sight(True, "UNKNOWN", str(error))
    return Sight(True, rows[-1].state if over(rows) else "UNKNOWN")


def care(run: Run, slurm: Slurm | None, sight: Sight) -> None:
    """Hasten a requeued job that only waits for its begin time, and drop exclusions that leave too few nodes."""
    view = sight.view
    if slurm is None or view is None or view.state != "PENDING":
        return
    try:
        _hasten(run, slurm, view)
        _drop_exclusions(run, slurm, view)
    except ClusterError as error:
        _log.info("job %s is left as it is: %s", view.job_id, error)


def _hasten(run: Run, slurm: Slurm, view: JobView) -> None:
    """Slurm holds a requeued job back for its credentials' life (two minutes by default); its owner may shorten it."""
    delay = run.launch.requeue_delay_seconds
    if view.restarts and view.reason == "BeginTime" and view.started and view.started - clock.now() > delay + 1:
        slurm.update(view.job_id, StartTime=f"now+{delay}")


def _drop_exclusions(run: Run, slurm: Slurm, view: JobView) -> None:
    # What the run file or the fabric stage rules out stays out: the job rather waits.
    settled = dict.fromkeys((*run.slurm.exclude, *left_out(run)))
    ours = set(view.excluded) - set(settled)
    if not ours:
        return
    offers = slurm.partition(view.partition)
    left = [one for one in offers if one.up and one.name not in view.excluded]
    if len(left) < run.held_nodes:
        _log.warning("no longer leaving out %s: too few other nodes are up", ", ".join(sorted(ours)))
        slurm.update(view.job_id, ExcNodeList=",".join(settled))


def after(
    run: Run, folder: RunFolder, slurm: Slurm | None, sight: Sight, since: int, job_id: str | None = None
) -> Decision:
    """Return what follows the job that is gone. ``since``: attempts that were there before this driver's jobs.

    A job that made no attempt is the last: whatever kept it from one would keep the next job too.
    """
    close_open(folder, slurm, socket.gethostname(), None, sight.word)
    every = ledger.read(folder)
    mine = [entry for entry in every if job_id in (None, entry.job_id)]
    # A driver that attached to a running attempt has none of its own yet.
    entries = every[since:] or mine
    if not mine or not entries or folder.stop_request.exists() or sight.word == "CANCELLED":
        done = bool(entries) and entries[-1].ending is Ending.DONE
        return Decision(Action.FINISH if done else Action.STOP, "ended")
    last = entries[-1]
    if last.action in (Action.STOP, Action.FINISH):
        return Decision(last.action, last.reason)
    if last.action is Action.REQUEUE and run.slurm.executor == "local":
        return Decision(Action.STOP, f"{last.reason}; there is no other host")
    return decide([entry.past for entry in entries], run.launch)


def conclude(
    run: Run, inputs: Inputs, folder: RunFolder, slurm: Slurm | None, sight: Sight, job_id: str | None = None
) -> TrainRecord:
    """Return the record of a run whose job is gone, written now, or raise what ended it."""
    close_open(folder, slurm, socket.gethostname(), None, sight.word)
    entries = ledger.read(folder)
    if entries and entries[-1].ending is Ending.DONE:
        frozen_run, frozen = read_frozen(folder)
        jobs = [line.job_id for line in read_jobs(folder) if not line.local]
        return write_record(frozen_run, frozen, inputs, folder, accounts(slurm, jobs))
    raise _error(run, folder, _last_word(entries, sight, job_id), sight)


def _last_word(entries: Sequence[Entry], sight: Sight, job_id: str | None) -> Entry | None:
    """The attempt that says why the job ended: its own last one, or one that was ended on purpose before it."""
    mine = [entry for entry in entries if job_id in (None, entry.job_id)]
    kept_to = [entry for entry in entries[-1:] if sight.word == "COMPLETED" and entry.ending in ENDED_ON_PURPOSE]
    return next(iter(mine[-1:] or kept_to), None)


def _error(run: Run, folder: RunFolder, last: Entry | None, sight: Sight) -> SteelrailError:
    again = "run train again to resume from the newest checkpoint"
    if folder.stop_request.exists():
        return StoppedError(must(f"run {run.name}", "trained to its end", "stopped on request", folder.root, again))
    if sight.word == "CANCELLED" or (last is not None and last.ending in ENDED_ON_PURPOSE):
        how = last.ending.value if last is not None and last.ending in ENDED_ON_PURPOSE else "cancelled"
        return StoppedError(must(f"run {run.name}", "trained to its end", how, folder.root, again))
    if last is None and sight.word == "COMPLETED":
        do = "raise cost.budget_usd, or see the supervisor's log there"
        said = "ended before an attempt began: its budget was spent, or it was told to end"
        return StoppedError(must(f"job of run {run.name}", "able to start", said, submitit_folder(folder), do))
    if last is None:
        log = submitit_folder(folder)
        said = f"over before an attempt began ({sight.word})"
        return ClusterError(must(f"job of run {run.name}", "able to start", said, log, "read its log there"))
    if last.exit_code == EXIT_FULL:
        return full_error(folder.root)
    kind = _BY_EXIT_CODE.get(last.exit_code or 0, TrainError)
    if kind is not TrainError:
        return kind(f"{last.reason} (attempt {last.attempt}, {folder.log(last.attempt)})")
    ending = last.ending.value if last.ending else "unknown"
    do = f"mend the cause, then run train again; log: {folder.log(last.attempt)}"
    trace = _trace(folder, last.attempt)
    return TrainError(
        must(f"run {run.name}", "trained to its end", f"{ending}: {last.reason}", folder.root, do) + trace
    )


def _trace(folder: RunFolder, attempt: int) -> str:
    """The trace of the rank that failed, as the ledger kept it."""
    from steelrail.artifacts.events import read_events

    ends = [one for one in read_events(folder.ledger) if one.kind == "attempt_end" and one.attempt == attempt]
    trace = ends[0].data.get("trace", "") if ends else ""
    return f"\n{trace.rstrip()}" if trace else ""
