"""The cost stage: read what the run left and what Slurm charged, write ledger, report and, last, the summary."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from steelrail.artifacts.corpus import CorpusManifest
from steelrail.artifacts.cost import CostSummary, RequestsCost
from steelrail.artifacts.fabric import FabricReport
from steelrail.artifacts.files import Artifact, read_artifact, results_folder, write_artifact, write_whole
from steelrail.artifacts.jobs import NotedJob, noted_jobs
from steelrail.artifacts.requests import Requests, noted_requests
from steelrail.artifacts.shards import ShardsManifest
from steelrail.artifacts.train import TrainRecord
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
from steelrail.cost import balance, compare, pieces, requests, storage
from steelrail.cost.accounts import jobs_of, missing
from steelrail.cost.balance import BilledPiece, Rates
from steelrail.cost.ledger import ledger_table
from steelrail.cost.pictures import Array, Curve
from steelrail.cost.pieces import Cut
from steelrail.cost.reader import Reader
from steelrail.cost.report import Page, render
from steelrail.cost.segments import Segment, Stage, as_if_paid, segments
from steelrail.errors import AccountingError, InputError, must
from steelrail.formats.sacct import SacctRow, job_rows
from steelrail.log import logger
from steelrail.units import SECONDS_PER_HOUR, show_usd

# sacct lags by 2 to 5 s as a rule; a controller that restarts sends its rows later.
WAIT_SECONDS = 120.0
POLL_SECONDS = 2.0
BANDS = 600  # of the picture of attempts, over its width
HOME_STORE = "aws-s3-standard"  # what a store without an endpoint of its own is
_log = logger(__name__)
A = TypeVar("A", bound=Artifact)


@dataclass(frozen=True)
class Left:
    """What the other stages left behind. ``fabric`` is none for a run that was submitted without that stage."""

    record: TrainRecord
    shards: ShardsManifest
    corpus: CorpusManifest
    fabric: FabricReport | None
    noted: tuple[NotedJob, ...]

    @property
    def stages(self) -> dict[str, Stage]:
        """Every job of the run that Slurm knows, and its stage: those that failed too."""
        made: Mapping[Stage, Sequence[str]] = {
            "shards": self.shards.job_ids,
            "fabric": (self.fabric.job_id,) if self.fabric else (),
            "train": self.record.job_ids,
        }
        return jobs_of(self.noted, self.shards.key, made)


@dataclass(frozen=True)
class Bill:
    """Everything priced. ``on``: the day whose prices count."""

    on: date
    row: PriceRow
    stale: bool
    paid: tuple[Segment, ...]
    cuts: tuple[Cut, ...]
    pieces: tuple[BilledPiece, ...]


@dataclass(frozen=True)
class Beside:
    """What the store costs besides: at every store of the book, and at the run's own where the book knows it."""

    kept: storage.Stored
    stores: tuple[storage.StorageCost, ...]
    own: storage.StorageCost | None
    requests: RequestsCost


def summary_path(run: Run) -> Path:
    """Return where the summary of a run's bill is."""
    return results_folder(run) / "cost" / "summary.json"


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
    reader = _reader(run, left)
    book = load_price_book(run.cost.price_book)
    jobs = _wait_for_accounts(slurm, left)
    bill = _bill(run, left, segments(jobs, left.stages), reader, book)
    beside = _beside(run, left, bill, reader, book)
    share = balance.unattributed_share(bill.pieces)
    summary = _summary(run, left, bill, book, beside, started)
    _write_ledger(run, bill.pieces)
    _write_report(run, left, summary, bill, beside)
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
    reader = _reader(run, left)
    paid = as_if_paid(left.record.attempts, run.shape.num_gpus)
    book = load_price_book(run.cost.price_book)
    begin = paid[0].start if paid else started
    bill = Bill(day(begin), price_in(book, run, begin), False, (), tuple(_cut(paid, left, reader)), ())
    beside = _beside(run, left, bill, reader, book)
    summary = _summary(run, left, bill, book, beside, started).model_copy(
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
    _write_report(run, left, summary, bill, beside)
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


def _bill(run: Run, left: Left, paid: tuple[Segment, ...], reader: Reader, book: PriceBook) -> Bill:
    begin = _begin(paid)
    row = price_in(book, run, begin)
    cuts = tuple(_cut(paid, left, reader))
    rates = Rates(usd_per_gpu_hour(row), Decimal(run.cost.cpu_usd_per_hour))
    stale = is_stale(row, day(begin), run.cost.max_age_days)
    return Bill(day(begin), row, stale, paid, cuts, balance.bill(cuts, rates))


def _begin(paid: Sequence[Segment]) -> float:
    """The time whose prices count: when training began, whatever a reused stage cost before."""
    training = [one.start for one in paid if one.stage == "train"]
    return min(training or [one.start for one in paid])


def _cut(paid: Sequence[Segment], left: Left, reader: Reader) -> list[Cut]:
    train = [one for one in paid if one.stage == "train"]
    width = max((one.end for one in train), default=0.0) - min((one.start for one in train), default=0.0)
    done = {
        id(cut.segment): cut for cut in pieces.cut_training(train, left.record.attempts, reader.reports, width / BANDS)
    }
    for one in paid:
        if one.stage != "train":
            done[id(one)] = pieces.cut_job(one, "preprocessing" if one.stage == "shards" else "fabric_check")
    return [done[id(one)] for one in paid]


def _summary(run: Run, left: Left, bill: Bill, book: PriceBook, beside: Beside, started: float) -> CostSummary:
    key = keys.cost_key(run, book_digest(book))
    total = sum(one.micro_usd for one in bill.pieces)
    inputs = {
        "train": left.record.key,
        "shards": left.shards.data_digest,
        "corpus": left.corpus.content_digest,
        **({"fabric": left.fabric.hardware_digest} if left.fabric else {}),
        "price book": book_digest(book),
    }
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
        storage_micro_usd_per_month=beside.own.micro_usd_per_month if beside.own else None,
        requests=beside.requests,
        provider=bill.row.provider,
        sku=bill.row.sku,
        usd_per_gpu_hour=f"{usd_per_gpu_hour(bill.row).normalize():f}",
        comparisons=compare.compare(book, bill.row, bill.on, bill.paid, run.cost.max_age_days),
        provenance=provenance("cost", key, run, inputs, started),
    )


def _write_ledger(run: Run, billed: Sequence[BilledPiece]) -> None:
    private_folder(summary_path(run).parent)
    buffer = io.BytesIO()
    pq.write_table(ledger_table(billed), buffer, compression="zstd")
    write_whole(summary_path(run).with_name("ledger.parquet"), buffer.getvalue())


def _write_report(run: Run, left: Left, summary: CostSummary, bill: Bill, beside: Beside) -> None:
    page = Page(
        run=run,
        summary=summary,
        record=left.record,
        row=bill.row if summary.total_micro_usd is not None else None,
        stale=bill.stale,
        shards=left.shards,
        fabric=left.fabric,
        bands=tuple(band for cut in bill.cuts if cut.segment.stage == "train" for band in cut.bands),
        curves=_curves(results_folder(run) / "train" / "metrics.parquet"),
        storage=beside.stores,
        stored=beside.kept,
    )
    write_whole(summary_path(run).with_name("report.html"), render(page).encode())


def _curves(path: Path) -> tuple[Curve, ...]:
    if not path.exists():
        return ()
    try:
        table = pq.read_table(path, columns=["step", "attempt", "loss", "tokens_per_s", "heldout_loss"])
    except (pa.ArrowException, OSError) as error:
        do = "remove it and run steelrail train: it is made again from what each attempt wrote"
        raise InputError(
            must("metrics", "as they were written", f"damaged ({type(error).__name__})", path, do)
        ) from error
    columns = {name: table[name].to_numpy() for name in table.column_names}
    return tuple(_curve(columns, int(attempt)) for attempt in np.unique(columns["attempt"]))


def _curve(columns: Mapping[str, Array], attempt: int) -> Curve:
    own = columns["attempt"] == attempt
    heldout = columns["heldout_loss"][own].astype(float)
    return Curve(attempt, columns["step"][own], columns["loss"][own], columns["tokens_per_s"][own], heldout)


def _beside(run: Run, left: Left, bill: Bill, reader: Reader, book: PriceBook) -> Beside:
    """Price what the run keeps in the store and what it asked of it; after the cutting, which reads all events."""
    shard_bytes = sum(one.size_bytes for one in left.shards.data_shards)
    kept = storage.stored(reader.sizes, reader.losses, run.checkpoints, shard_bytes, run.train.bad_step)
    keys_of = {("corpus", left.corpus.key), ("shards", left.shards.key), ("train", left.record.key)}
    counts = requests.by_process(noted_requests(results_folder(run)), keys_of, reader.requests)
    fault = requests.uncounted(counts, left.record.attempts)
    asked = None if fault else sum(counts.values(), Requests())
    stores = storage.price_storage(book, bill.on, kept, asked)
    own = storage.cost_at(stores, _store_service(run))
    return Beside(kept, stores, own, requests.bill_requests(counts, fault, own.row if own else None))


def _store_service(run: Run) -> str | None:
    """What the run's store is called in the price book, where that can be told."""
    return run.cost.store_service or (HOME_STORE if run.store.endpoint is None else None)


def _reader(run: Run, left: Left) -> Reader:
    return Reader(RunFolder(results_folder(run) / "train" / left.record.key))


def _left(run: Run) -> Left:
    folder = results_folder(run)
    fabric = folder / "fabric" / "report.json"
    return Left(
        record=read_artifact(folder / "train" / "record.json", TrainRecord),
        shards=read_artifact(folder / "shards" / "manifest.json", ShardsManifest),
        corpus=read_artifact(folder / "corpus" / "manifest.json", CorpusManifest),
        fabric=read_artifact(fabric, FabricReport) if fabric.exists() else None,
        noted=noted_jobs(folder),
    )
