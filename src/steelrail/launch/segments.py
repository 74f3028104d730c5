"""Closing attempts whose supervisor died with them, by what Slurm's accounts say of their segments. An edge."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from steelrail.artifacts.train import Ending
from steelrail.artifacts.trainer import RunFolder
from steelrail.clients.slurm import Slurm
from steelrail.errors import SteelrailError
from steelrail.formats.sacct import SacctRow, job_rows
from steelrail.launch import ledger, traces
from steelrail.launch.endings import close
from steelrail.launch.ledger import Entry
from steelrail.log import logger

_log = logger(__name__)


def close_open(
    folder: RunFolder, slurm: Slurm | None, host: str, running: tuple[str, int] | None, state: str | None = None
) -> None:
    """Write the end of every attempt that has none and runs no more.

    ``running`` is the (job id, segment) of the caller's own live segment: its attempts are left alone. ``state`` is
    what is known of the last segment of a job that is gone, should the accounts be silent.
    """
    entries = ledger.read(folder)
    open_entries = [entry for entry in entries if entry.ended is None and (entry.job_id, entry.segment) != running]
    rows = accounts(slurm, sorted({entry.job_id for entry in open_entries}))
    for entry in open_entries:
        later = any(other.job_id == entry.job_id and other.segment > entry.segment for other in entries)
        later = later or (running is not None and running[0] == entry.job_id)
        row = row_of(rows.get(entry.job_id, ()), entry)
        word = row.state if row is not None and not row.open else (None if later else state)
        verdict = close(word, later)
        if verdict.ending is Ending.UNKNOWN and state is None and not later:
            continue
        steps = traces.steps_of(folder, entry.attempt)
        progressed = (steps.durable or -1) > traces.newest_durable(folder, entry.attempt)
        ended = (row.end if row else None) or steps.last_event or entry.started
        ledger.write_end(folder, host, entry.attempt, verdict, progressed, None, ended)
        _log.info("attempt %d ended: %s (%s)", entry.attempt, verdict.ending.value, verdict.reason)


def row_of(rows: tuple[SacctRow, ...], entry: Entry) -> SacctRow | None:
    """Return the row of the segment in which an attempt ran: the last that began before it did."""
    before = [row for row in rows if row.start is not None and row.start <= entry.started + 1]
    return before[-1] if before else None


def with_state(entry: Entry, rows: tuple[SacctRow, ...]) -> Entry:
    """Return an attempt whose ending is told apart better by the accounts: requeued by hand, or preempted."""
    row = row_of(rows, entry)
    if row is None or row.open or entry.ending not in (Ending.REQUEUED, Ending.UNKNOWN):
        return entry
    verdict = close(row.state, entry.ending is Ending.REQUEUED)
    if verdict.ending in (Ending.UNKNOWN, Ending.JOB_ERROR):
        return entry
    return replace(entry, ending=verdict.ending, reason=verdict.reason)


def accounts(slurm: Slurm | None, job_ids: Iterable[str]) -> dict[str, tuple[SacctRow, ...]]:
    """Return what Slurm's accounts say of jobs, by job; nothing while they cannot be read."""
    numbers = [job_id for job_id in job_ids if job_id.isdigit()]
    if slurm is None or not numbers:
        return {}
    try:
        return job_rows(slurm.accounts(numbers))
    except SteelrailError as error:
        _log.warning("Slurm's accounts cannot be read, the ledger alone counts: %s", error)
        return {}
