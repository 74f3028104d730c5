"""``steelrail checkpoints``: what the store holds of a run, what is kept and why; the rest is removed. An edge."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from steelrail.artifacts.files import results_folder
from steelrail.checkpoints import fence, retention
from steelrail.checkpoints.keep import Verdict, judge
from steelrail.checkpoints.newest import steps_prefix
from steelrail.clients import clock
from steelrail.clients.slurm import Slurm, user_name
from steelrail.clients.store import Store, Unfinished
from steelrail.config.schema import Run
from steelrail.errors import BusyError, must
from steelrail.launch.inputs import read_inputs
from steelrail.launch.jobs import living_local_jobs
from steelrail.launch.lock import only_driver
from steelrail.launch.request import job_name
from steelrail.units import show_bytes, show_seconds

_HEAD = ("step", "epoch", "size", "age", "provable", "held-out", "kept")


@dataclass(frozen=True)
class Line:
    """One checkpoint folder. ``provable``: where (none: nowhere, see ``fault``); ``void``: a later attempt replaced it.

    ``age_seconds`` counts from the save, for an unfinished upload from its newest object.
    """

    step: int
    epoch: int
    size_bytes: int
    age_seconds: float | None
    provable: str | None
    fault: str | None
    void: bool
    heldout_loss: float | None
    keeps: bool
    why: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The line for a reader, cell by cell."""
        age = "" if self.age_seconds is None else show_seconds(self.age_seconds)
        proved = "void" if self.void else self.provable or "no"
        loss = "" if self.heldout_loss is None else f"{self.heldout_loss:.4f}"
        said = f"{'yes' if self.keeps else 'no'}: {self.why}"
        return (str(self.step), str(self.epoch), show_bytes(self.size_bytes), age, proved, loss, said)


@dataclass(frozen=True)
class Overview:
    """All checkpoints of a run's key in the store, newest first. ``swept``: those not kept were removed just now.

    ``stale_uploads``: keys of unfinished uploads of parts that are so old that they go too.
    """

    run: str
    key: str
    place: str
    lines: tuple[Line, ...]
    stale_uploads: tuple[str, ...]
    swept: bool

    def json(self) -> str:
        """Return the overview for machines."""
        return json.dumps(asdict(self), indent=1)

    def text(self) -> str:
        """Return the overview for a reader."""
        total = show_bytes(sum(line.size_bytes for line in self.lines))
        head = f"run {self.run}, key {self.key}: {len(self.lines)} checkpoints, {total}, in {self.place}"
        return "\n".join([head, *(_table(self.lines) if self.lines else ()), self._end()])

    def _end(self) -> str:
        going = [line for line in self.lines if not line.keeps]
        if not going and not self.stale_uploads:
            return "nothing to remove"
        size = show_bytes(sum(line.size_bytes for line in going))
        what = f"{len(going)} of {len(self.lines)} checkpoints, {size}"
        what += f"; unfinished uploads of parts: {len(self.stale_uploads)}" if self.stale_uploads else ""
        return f"removed: {what}" if self.swept else f"would go: {what} (nothing was removed; --sweep removes it)"


def look(run: Run) -> Overview:
    """Return what the store holds of this run file's key, and what its rules keep; changes nothing.

    Raises ``InputError`` while there is no key (no shards yet), ``StoreError`` when the store cannot say.
    """
    key, store = read_inputs(run).key, Store.open(run.store)
    return _overview(run, key, store, *_judged(run, key, store, fence.current(store, run.name, key)), swept=False)


def sweep(run: Run) -> Overview:
    """Remove what the rules do not keep, and what dead attempts left; returns what was there before.

    Raises ``BusyError`` while a driver or a training job of the run lives, ``ClusterError`` when nobody can tell.
    """
    key, store = read_inputs(run).key, Store.open(run.store)
    with only_driver(results_folder(run), run.name):
        _refuse_beside_job(run)
        epoch = fence.current(store, run.name, key)
        verdicts, uploads = _judged(run, key, store, epoch)
        _remove(run, key, store, epoch, verdicts)
        store.abort_unfinished(steps_prefix(store, run.name, key), _stale_before())
    return _overview(run, key, store, verdicts, uploads, swept=True)


def _judged(run: Run, key: str, store: Store, epoch: int) -> tuple[tuple[Verdict, ...], tuple[Unfinished, ...]]:
    """Return what becomes of every checkpoint, and the unfinished uploads that are old enough to go."""
    held = retention.survey(store, run.name, key)
    resumed = fence.resumes(store, run.name, key)
    verdicts = judge(held, resumed, epoch, run.checkpoints, _stale_before(), run.train.bad_step)
    uploads = store.unfinished(steps_prefix(store, run.name, key))
    return verdicts, tuple(one for one in uploads if one.begun < _stale_before())


def _remove(run: Run, key: str, store: Store, epoch: int, verdicts: Sequence[Verdict]) -> None:
    try:
        retention.remove(store, run.name, key, epoch, verdicts)
    except BusyError as error:
        do = "nothing more was removed; that attempt itself removes what is not kept"
        where = f"key {key}"
        raise BusyError(must(f"run {run.name}", "without a new attempt meanwhile", "begun anew", where, do)) from error


def _refuse_beside_job(run: Run) -> None:
    alive = _living_job(run)
    if alive is not None:
        do = "leave it to that job, which removes what is not kept after each checkpoint, or steelrail stop and wait"
        raise BusyError(must(f"run {run.name}", "without a living training job", "training", alive, do))


def _living_job(run: Run) -> str | None:
    """Name a training job of this run that lives, under whatever key, or return none."""
    local = living_local_jobs(run)
    if local or run.slurm.executor == "local":
        return f"local job {local[0][1].job_id}" if local else None
    rows = Slurm().queue(user_name(), job_name(run.name, "train"))
    return f"job {rows[0].job_id}, {rows[0].state.lower()}" if rows else None


def _stale_before() -> float:
    return clock.now() - retention.STALE_UPLOAD_SECONDS


def _overview(
    run: Run, key: str, store: Store, verdicts: Sequence[Verdict], uploads: Sequence[Unfinished], *, swept: bool
) -> Overview:
    place = f"s3://{store.bucket}/{steps_prefix(store, run.name, key)}"
    lines = tuple(_line(one, clock.now()) for one in verdicts)
    return Overview(run.name, key, place, lines, tuple(one.key for one in uploads), swept)


def _line(one: Verdict, now: float) -> Line:
    held = one.held
    since = held.created if held.created is not None else held.changed
    return Line(
        step=held.which.step,
        epoch=held.which.epoch,
        size_bytes=held.size_bytes,
        age_seconds=None if since is None else max(0.0, now - since),
        provable="store" if held.fault is None else None,
        fault=held.fault,
        void=one.void,
        heldout_loss=held.heldout_loss,
        keeps=one.keeps,
        why=one.why,
    )


def _table(lines: Sequence[Line]) -> list[str]:
    """Return lines of columns: all but the last to the right."""
    rows = [_HEAD, *(line.cells for line in lines)]
    *columns, _ = zip(*rows, strict=True)
    widths = [max(len(cell) for cell in column) for column in columns]
    aligned = ([cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=True)] for row in rows)
    return ["  ".join([*cells, row[-1]]) for cells, row in zip(aligned, rows, strict=True)]
