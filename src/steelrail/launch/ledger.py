"""The supervisor's ledger: one line when an attempt starts, one when it has ended. Appended, never rewritten.

- ``attempt_start``: job_id, segment, segment_started (Unix s), nodes, epoch, code_digest
- ``note`` with ``step_id``: the job step that Slurm gave the attempt
- ``attempt_end``: ending, reason, exit_code, culprit, mark, step, trace, host_silent, progressed, action; the first one
  counts, so that a supervisor that wakes up late changes nothing
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from steelrail.artifacts.events import Event, EventWriter, read_events
from steelrail.artifacts.train import Ending
from steelrail.artifacts.trainer import RunFolder
from steelrail.clients import clock
from steelrail.config.words import why
from steelrail.errors import InputError, must
from steelrail.launch.endings import Verdict
from steelrail.launch.policy import Action, Past

SUPERVISOR_RANK = -1


@dataclass(frozen=True)
class Entry:
    """One attempt as the ledger tells it. ``ended`` is none while it runs, or when its supervisor died with it."""

    attempt: int
    job_id: str
    segment: int
    segment_started: float
    nodes: tuple[str, ...]
    epoch: int | None
    code_digest: str
    started: float
    step_id: str | None = None
    ended: float | None = None
    ending: Ending | None = None
    reason: str = ""
    exit_code: int | None = None
    culprit: str | None = None
    mark: str | None = None
    step: int | None = None
    host_silent: bool = False
    progressed: bool = False
    action: Action | None = None

    @property
    def past(self) -> Past:
        """This attempt as the policy reads it."""
        return past_of(self, self.progressed)


def read(folder: RunFolder) -> tuple[Entry, ...]:
    """Return all attempts of a run folder, oldest first. Raises ``InputError`` when the ledger is damaged."""
    try:
        return entries(read_events(folder.ledger)) if folder.ledger.exists() else ()
    except (KeyError, ValueError, TypeError) as error:
        fault = f"damaged ({why(error)})"
        do = "put it back as it was written: no attempt may be counted twice, or not at all"
        raise InputError(must("ledger", "as the supervisor wrote it", fault, folder.ledger, do)) from error


def entries(events: Iterable[Event]) -> tuple[Entry, ...]:
    """Return the attempts that the ledger's events tell of."""
    found: dict[int, Entry] = {}
    for event in events:
        before = found.get(event.attempt)
        if event.kind == "attempt_start" and before is None:
            found[event.attempt] = _started(event)
        elif event.kind == "note" and before and "step_id" in event.data:
            found[event.attempt] = replace(before, step_id=event.data["step_id"])
        elif event.kind == "attempt_end" and before and before.ended is None:
            found[event.attempt] = _ended(before, event)
    return tuple(found[attempt] for attempt in sorted(found))


def past_of(ended: Verdict | Entry, progressed: bool) -> Past:
    """Return an attempt, one that ended just now or one of the ledger, as the policy reads it."""
    return Past(
        ending=ended.ending or Ending.UNKNOWN,
        progressed=progressed,
        exit_code=ended.exit_code,
        culprit=ended.culprit,
        mark=ended.mark,
        step=ended.step,
        host_silent=ended.host_silent,
    )


def write_start(folder: RunFolder, host: str, entry: Entry) -> None:
    """Append that an attempt starts now."""
    _append(
        folder,
        entry.attempt,
        host,
        "attempt_start",
        job_id=entry.job_id,
        segment=entry.segment,
        segment_started=entry.segment_started,
        nodes=list(entry.nodes),
        epoch=entry.epoch,
        code_digest=entry.code_digest,
    )


def write_step_id(folder: RunFolder, host: str, attempt: int, step_id: str) -> None:
    """Append which job step an attempt became."""
    _append(folder, attempt, host, "note", text="job step", step_id=step_id)


def write_end(
    folder: RunFolder,
    host: str,
    attempt: int,
    verdict: Verdict,
    progressed: bool,
    action: Action | None,
    ended: float | None = None,
) -> None:
    """Append how an attempt ended and what follows. ``ended`` is when, if not now (Unix seconds)."""
    _append(
        folder,
        attempt,
        host,
        "attempt_end",
        ending=verdict.ending.value,
        reason=verdict.reason,
        exit_code=verdict.exit_code,
        culprit=verdict.culprit,
        mark=verdict.mark,
        step=verdict.step,
        trace=verdict.trace,
        host_silent=verdict.host_silent,
        progressed=progressed,
        action=action.value if action else None,
        ended=ended,
    )


def _append(folder: RunFolder, attempt: int, host: str, kind: object, **data: object) -> None:
    writer = EventWriter(folder.ledger, attempt, SUPERVISOR_RANK, host, clock.now)
    try:
        writer.write(kind, **data)  # type: ignore[arg-type]
    finally:
        writer.close()


def _started(event: Event) -> Entry:
    data = event.data
    return Entry(
        attempt=event.attempt,
        job_id=data["job_id"],
        segment=data["segment"],
        segment_started=data["segment_started"],
        nodes=tuple(data["nodes"]),
        epoch=data["epoch"],
        code_digest=data["code_digest"],
        started=event.time,
    )


def _ended(entry: Entry, event: Event) -> Entry:
    data = event.data
    return replace(
        entry,
        ended=data["ended"] or event.time,
        ending=Ending(data["ending"]),
        reason=data["reason"],
        exit_code=data["exit_code"],
        culprit=data["culprit"],
        mark=data["mark"],
        step=data["step"],
        # Lines of before it was kept have none.
        host_silent=data.get("host_silent", False),
        progressed=data["progressed"],
        action=Action(data["action"]) if data["action"] else None,
    )
