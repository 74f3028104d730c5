"""The cost stage: read what the run left and what Slurm charged, write ledger, report and, last, the summary."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow.parquet as pq

from steelrail.artifacts.corpus import CorpusManifest
from steelrail.artifacts.cost import CostSummary
from steelrail.artifacts.events import Event, read_events
from steelrail.artifacts.fabric import FabricReport
from steelrail.artifacts.files import Artifact, read_artifact, write_artifact, write_whole
from steelrail.artifacts.jobs import NotedJob, noted_jobs
from steelrail.artifacts.shards import ShardsManifest
from steelrail.artifacts.train import Attempt, TrainRecord
from steelrail.artifacts.trainer import RunFolder
from steelrail.clients import clock
from steelrail.clients.disk import private_folder
from steelrail.clients.provenance import provenance
from steelrail.clients.slurm import Slurm
from steelrail.config import keys
from steelrail.config.prices import (
    PriceBook,
    PriceRow,
    book_digest,
    day,
    is_stale,
    load_price_book,
    price_in,
    usd_per_gpu_hour,
)
from steelrail.config.schema import Run
from steelrail.cost import balance, compare, pieces, storage
from steelrail.cost.accounts import missing
from steelrail.cost.balance import BilledPiece, Rates
from steelrail.cost.ledger import ledger_table
from steelrail.cost.pictures import Array, Curve
from steelrail.cost.pieces import Cut, Reports
from steelrail.cost.report import Page, render
from steelrail.cost.segments import Segment, Stage, as_if_paid, segments
from steelrail.cost.spend import over_budget, spent_so_far
from steelrail.errors import AccountingError
from steelrail.formats.sacct import SacctRow, job_rows
from steelrail.log import logger
from steelrail.units import SECONDS_PER_HOUR, show_usd

__all__ = ["over_budget", "run_stage", "spent_so_far", "summary_path"]

# sacct lags by 2 to 5 s as a rule; a controller that restarts sends its rows later.
WAIT_SECONDS = 120.0
POLL_SECONDS = 2.0
BANDS = 600  # of the picture of attempts, over its width
HOME_STORE = "aws-s3-standard"  # what a store without an endpoint of its own is
_log = logger(__name__)
A = TypeVar("A", bound=Artifact)


@dataclass(frozen=True)
class Left:
    """What the other stages left behind."""

    record: TrainRecord
    shards: ShardsManifest
    corpus: CorpusManifest
    fabric: FabricReport
    noted: tuple[NotedJob, ...]

    @property
    def stages(self) -> dict[str, Stage]:
        """Every job of the run that Slurm knows, and its stage: those that failed too."""
        own = {("shards", self.shards.key), ("fabric", self.fabric.key)}
        found: dict[str, Stage] = {job.job_id: job.stage for job in self.noted if (job.stage, job.key) in own}
        found |= dict.fromkeys(self.shards.job_ids, "shards")
        found |= {self.fabric.job_id: "fabric", **dict.fromkeys(self.record.job_ids, "train")}
        return {job_id: stage for job_id, stage in found.items() if job_id.isdecimal()}


@dataclass(frozen=True)
class Bill:
    """Everything priced."""

    row: PriceRow
    stale: bool
    paid: tuple[Segment, ...]
    cuts: tuple[Cut, ...]
    pieces: tuple[BilledPiece, ...]


def summary_path(run: Run) -> Path:
    """Return where the summary of a run's bill is."""
    return _folder(run) / "cost" / "summary.json"


def run_stage(run: Run, slurm: Slurm | None = None) -> CostSummary:
    """Make the bill of a finished run and return it.

    Raises ``AccountingError`` when Slurm's rows stay incomplete for two minutes, or when more than one per cent of the
    bill is unattributed (``summary-unbalanced.json`` then holds it). Without accounting the status is unavailable.
    """
    started = clock.now()
    left = _left(run)
    reason = _no_accounting(run, slurm := slurm or Slurm())
    return _unpriced(run, left, started, reason) if reason else _priced(run, left, started, slurm)


def _priced(run: Run, left: Left, started: float, slurm: Slurm) -> CostSummary:
    reader = _Reader(run, left.record.key)
    book = load_price_book(run.cost.price_book)
    jobs = _wait_for_accounts(slurm, left)
    bill = _bill(run, left, segments(jobs, left.stages), reader, book)
    kept = _stored(run, left, reader)
    share = balance.unattributed_share(bill.pieces)
    summary = _summary(run, left, bill, book, kept, started)
    _write_ledger(run, bill.pieces)
    _write_report(run, left, summary, bill, book, kept)
    if share > balance.MAX_UNATTRIBUTED:
        reason = f"{share:.2%} of the bill is unattributed"
        unbalanced = summary.model_copy(update={"status": "estimated", "reason": reason})
        write_artifact(summary_path(run).with_name("summary-unbalanced.json"), unbalanced)
    balance.check_balanced(bill.pieces)
    write_artifact(summary_path(run), summary)
    amount, hours = show_usd(summary.total_micro_usd or 0), summary.gpu_seconds / SECONDS_PER_HOUR
    _log.info("cost: %s for %.2f GPU-hours, goodput %.1f %%", amount, hours, summary.goodput * 100)
    return summary


def _unpriced(run: Run, left: Left, started: float, reason: str) -> CostSummary:
    """Without accounting: time by the run's own events, no money anywhere."""
    reader = _Reader(run, left.record.key)
    paid = as_if_paid(left.record.attempts, run.shape.num_gpus)
    book = load_price_book(run.cost.price_book)
    row = price_in(book, run, paid[0].start if paid else started)
    bill = Bill(row, False, (), tuple(_cut(paid, left, reader)), ())
    kept = _stored(run, left, reader)
    summary = _summary(run, left, bill, book, kept, started).model_copy(
        update={
            "status": "unavailable",
            "reason": reason,
            "total_micro_usd": None,
            "micro_usd_per_million_tokens": None,
            "gpu_seconds": sum(one.gpus * one.seconds for one in paid),
            "comparisons": (),
        }
    )
    _write_ledger(run, ())
    _write_report(run, left, summary, bill, book, kept)
    write_artifact(summary_path(run), summary)
    _log.warning("cost: unavailable, %s", reason)
    return summary


def _no_accounting(run: Run, slurm: Slurm) -> str | None:
    if run.slurm.executor == "local":
        return "the run used the local executor (slurm.executor), and no Slurm accounted for it"
    return None if slurm.has_accounting() else "this Slurm keeps no accounts that sacct can read"


def _wait_for_accounts(slurm: Slurm, left: Left) -> Mapping[str, Sequence[SacctRow]]:
    give_up = clock.monotonic() + WAIT_SECONDS
    while True:
        jobs = job_rows(slurm.accounts(sorted(left.stages, key=int)))
        fault = missing(jobs, left.stages, left.record.attempts)
        if fault is None:
            return jobs
        if clock.monotonic() >= give_up:
            raise AccountingError(fault)
        _log.info("cost: waits for Slurm's accounting: %s", fault)
        clock.sleep(POLL_SECONDS)


def _bill(run: Run, left: Left, paid: tuple[Segment, ...], reader: _Reader, book: PriceBook) -> Bill:
    begin = _begin(paid)
    row = price_in(book, run, begin)
    cuts = tuple(_cut(paid, left, reader))
    rates = Rates(usd_per_gpu_hour(row), Decimal(run.cost.cpu_usd_per_hour))
    stale = is_stale(row, day(begin), run.cost.max_age_days)
    return Bill(row, stale, paid, cuts, balance.bill(cuts, rates))


def _begin(paid: Sequence[Segment]) -> float:
    """The time whose prices count: when training began, whatever a reused stage cost before."""
    training = [one.start for one in paid if one.stage == "train"]
    return min(training or [one.start for one in paid])


def _cut(paid: Sequence[Segment], left: Left, reader: _Reader) -> list[Cut]:
    train = [one for one in paid if one.stage == "train"]
    width = max((one.end for one in train), default=0.0) - min((one.start for one in train), default=0.0)
    done = {
        id(cut.segment): cut for cut in pieces.cut_training(train, left.record.attempts, reader.reports, width / BANDS)
    }
    for one in paid:
        if one.stage != "train":
            done[id(one)] = pieces.cut_job(one, "preprocessing" if one.stage == "shards" else "fabric_check")
    return [done[id(one)] for one in paid]


class _Reader:
    """Reads the ranks' events once, a rank at a time, and notes on the way what reached the store."""

    def __init__(self, run: Run, train_key: str) -> None:
        self._root = RunFolder(_folder(run) / "train" / train_key)
        self.sizes: dict[int, int] = {}

    def reports(self, attempt: Attempt) -> Reports:
        """Return what the ranks of one attempt reported."""
        own = self._root.events(attempt.attempt, 0).parent.glob(f"attempt-{attempt.attempt:04d}-rank-*.jsonl")
        hosts = {int(path.stem.rsplit("-", 1)[1]): _first_host(path) for path in own}
        return Reports(hosts, lambda rank: self._read(attempt, rank))

    def _read(self, attempt: Attempt, rank: int) -> Sequence[Event]:
        events = _events(self._root.events(attempt.attempt, rank))
        for step, size in storage.durable_bytes(events).items():
            # A step saved again after a restart takes the place of the first: only one of them is kept.
            self.sizes[step] = max(self.sizes.get(step, 0), size)
        return events


def _first_host(path: Path) -> str:
    return next((event.host for event in _events(path, most=1)), "")


def _events(path: Path, most: int | None = None) -> list[Event]:
    found: list[Event] = []
    try:
        for event in read_events(path):
            found.append(event)
            if len(found) == most:
                break
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        _log.warning("events of %s are damaged after line %d (%s): the rest is not used", path, len(found), error)
    return found


def _summary(run: Run, left: Left, bill: Bill, book: PriceBook, kept: storage.Stored, started: float) -> CostSummary:
    key = keys.cost_key(run, book_digest(book))
    total = sum(one.micro_usd for one in bill.pieces)
    on = day(_begin(bill.paid) if bill.paid else started)
    inputs = {
        "train": left.record.key,
        "shards": left.shards.data_digest,
        "corpus": left.corpus.content_digest,
        "fabric": left.fabric.hardware_digest,
        "price book": book_digest(book),
    }
    month = storage.month_at(storage.price_storage(book, on, kept), HOME_STORE) if run.store.endpoint is None else None
    return CostSummary(
        run=run.name,
        key=key,
        train_key=left.record.key,
        status="exact",
        reason=None,
        total_micro_usd=total,
        gpu_seconds=sum(one.gpus * one.seconds for one in bill.paid),
        cpu_seconds=sum(one.cpus * one.seconds for one in bill.paid if not one.gpus),
        categories=balance.categories(bill.pieces),
        attempts=len(left.record.attempts),
        segments=balance.billed_segments(bill.paid, bill.pieces),
        unattributed_share=balance.unattributed_share(bill.pieces),
        goodput=balance.goodput(bill.cuts),
        micro_usd_per_million_tokens=balance.per_million_tokens(total, left.record.tokens),
        storage_micro_usd_per_month=month,
        provider=bill.row.provider,
        sku=bill.row.sku,
        usd_per_gpu_hour=f"{usd_per_gpu_hour(bill.row).normalize():f}",
        comparisons=compare.compare(book, bill.row, on, bill.paid, run.cost.max_age_days),
        provenance=provenance("cost", key, run, inputs, started),
    )


def _write_ledger(run: Run, billed: Sequence[BilledPiece]) -> None:
    private_folder(summary_path(run).parent)
    buffer = io.BytesIO()
    pq.write_table(ledger_table(billed), buffer, compression="zstd")
    write_whole(summary_path(run).with_name("ledger.parquet"), buffer.getvalue())


def _write_report(
    run: Run, left: Left, summary: CostSummary, bill: Bill, book: PriceBook, kept: storage.Stored
) -> None:
    on = day(min((one.start for one in bill.paid), default=summary.provenance.started))
    page = Page(
        run=run,
        summary=summary,
        record=left.record,
        row=bill.row if summary.total_micro_usd is not None else None,
        stale=bill.stale,
        shards=left.shards,
        fabric=left.fabric,
        bands=tuple(band for cut in bill.cuts if cut.segment.stage == "train" for band in cut.bands),
        curves=_curves(_folder(run) / "train" / "metrics.parquet"),
        storage=storage.price_storage(book, on, kept),
        stored=kept,
    )
    write_whole(summary_path(run).with_name("report.html"), render(page).encode())


def _curves(path: Path) -> tuple[Curve, ...]:
    if not path.exists():
        return ()
    table = pq.read_table(path, columns=["step", "attempt", "loss", "tokens_per_s", "heldout_loss"])
    columns = {name: table[name].to_numpy() for name in table.column_names}
    return tuple(_curve(columns, int(attempt)) for attempt in np.unique(columns["attempt"]))


def _curve(columns: Mapping[str, Array], attempt: int) -> Curve:
    own = columns["attempt"] == attempt
    heldout = columns["heldout_loss"][own].astype(float)
    return Curve(attempt, columns["step"][own], columns["loss"][own], columns["tokens_per_s"][own], heldout)


def _stored(run: Run, left: Left, reader: _Reader) -> storage.Stored:
    return storage.stored(
        reader.sizes, run.checkpoints.keep_last, sum(one.size_bytes for one in left.shards.data_shards)
    )


def _left(run: Run) -> Left:
    folder = _folder(run)
    return Left(
        record=read_artifact(folder / "train" / "record.json", TrainRecord),
        shards=read_artifact(folder / "shards" / "manifest.json", ShardsManifest),
        corpus=read_artifact(folder / "corpus" / "manifest.json", CorpusManifest),
        fabric=read_artifact(folder / "fabric" / "report.json", FabricReport),
        noted=noted_jobs(folder),
    )


def _folder(run: Run) -> Path:
    return Path(run.results) / run.name
