"""``train/record.json``: what training did, put together from ledger, events and accounts. An edge, on the head."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from steelrail.artifacts.events import Event
from steelrail.artifacts.files import read_artifact, results_folder, write_artifact
from steelrail.artifacts.train import Attempt, Ending, TrainRecord
from steelrail.artifacts.trainer import RunFolder
from steelrail.checkpoints.layout import StepId
from steelrail.checkpoints.newest import candidates, survey_store
from steelrail.clients import clock
from steelrail.clients.provenance import provenance
from steelrail.clients.store import Store
from steelrail.config.keys import digest
from steelrail.config.schema import Run
from steelrail.errors import InputError, TrainError, must
from steelrail.formats.sacct import SacctRow
from steelrail.launch import ledger, traces
from steelrail.launch.container import describe
from steelrail.launch.freeze import Frozen
from steelrail.launch.inputs import Inputs, read_fabric
from steelrail.launch.jobs import read_jobs
from steelrail.launch.ledger import Entry
from steelrail.launch.segments import with_state
from steelrail.launch.start import start_parts
from steelrail.log import logger
from steelrail.train.plan import usual_mfu

_log = logger(__name__)


def record_path(run: Run) -> Path:
    """Return the path of a run's training record."""
    return results_folder(run) / "train" / "record.json"


def metrics_path(run: Run) -> Path:
    """Return the path of the metrics of all attempts."""
    return record_path(run).with_name("metrics.parquet")


def finished_record(run: Run, key: str) -> TrainRecord | None:
    """Return the record of this very model if it was trained to its end, whatever was rewritten upstream since."""
    path = record_path(run)
    try:
        record = read_artifact(path, TrainRecord)
    except InputError:
        return None
    return record if record.key == key and record.ending is Ending.DONE else None


def write_record(
    run: Run, frozen: Frozen, inputs: Inputs, folder: RunFolder, rows: Mapping[str, tuple[SacctRow, ...]]
) -> TrainRecord:
    """Gather the metrics, write the record last, and return it. ``rows`` are the accounts by job, if any."""
    entries = [with_state(entry, rows.get(entry.job_id, ())) for entry in ledger.read(folder)]
    _write_metrics(run, folder, entries)
    record = make_record(run, frozen, inputs, folder, entries)
    # Touched even when nothing in it changed: it must be newer than what it was made from.
    write_artifact(record_path(run), record)
    os.utime(record_path(run))
    return record


def remake_metrics(run: Run, folder: RunFolder) -> None:
    """Make the metrics of a finished run anew where they are missing, from the rows that its attempts left."""
    if metrics_path(run).exists():
        return
    entries = ledger.read(folder)
    if not any(folder.metrics(entry.attempt).exists() for entry in entries):
        _log.warning("%s is missing, and so are the rows that it was made of: %s", metrics_path(run), folder.root)
        return
    _write_metrics(run, folder, entries)
    _log.info("%s was missing and is made anew", metrics_path(run))


def _write_metrics(run: Run, folder: RunFolder, entries: Sequence[Entry]) -> None:
    from steelrail.train.metrics import gather_metrics  # brings torch, which a driver that only waits can do without

    gather_metrics([folder.metrics(entry.attempt) for entry in entries], metrics_path(run))


def make_record(run: Run, frozen: Frozen, inputs: Inputs, folder: RunFolder, entries: Sequence[Entry]) -> TrainRecord:
    """Return the record of a run folder whose last attempt is over."""
    attempts = tuple(attempt_of(folder, entry) for entry in entries)
    final = _final_checkpoint(run, inputs.key, folder, entries)
    # Events that were lost tell of no step; a checkpoint does.
    final_step = max([final.step, *(one.last_step or one.resumed_from or 0 for one in attempts)])
    heldout = _heldout(folder, entries)
    fabric = read_fabric(run)
    job_ids = dict.fromkeys([*(line.job_id for line in read_jobs(folder)), *(entry.job_id for entry in entries)])
    tokens = run.train.global_batch_sequences * run.train.sequence_tokens
    export = folder.root / "export"
    started = min((entry.started for entry in entries), default=clock.now())
    return TrainRecord(
        run=run.name,
        key=inputs.key,
        ending=entries[-1].ending or Ending.UNKNOWN if entries else Ending.UNKNOWN,
        job_ids=tuple(job_ids),
        attempts=attempts,
        final_step=final_step,
        final_checkpoint=f"s3://{run.store.bucket}/{run.store.prefix}/{run.name}/{inputs.key}/steps/{final.folder}",
        export=str(export) if export.is_dir() else None,
        tokens=final_step * tokens,
        heldout_first=heldout[0] if heldout else None,
        heldout_last=heldout[-1] if heldout else None,
        mfu=_mfu(run, folder, entries),
        fabric_digest=digest(fabric.model_dump(mode="json")) if fabric else None,
        placement=_placement(run, frozen),
        provenance=provenance("train", inputs.key, run, _input_digests(inputs), started),
    )


def attempt_of(folder: RunFolder, entry: Entry) -> Attempt:
    """Return one attempt with what its rank 0 did."""
    steps = traces.steps_of(folder, entry.attempt)
    return Attempt(
        attempt=entry.attempt,
        job_id=entry.job_id,
        step_id=entry.step_id or "",
        segment=entry.segment,
        nodes=entry.nodes,
        epoch=entry.epoch,
        started=entry.started,
        ended=entry.ended,
        ending=entry.ending or Ending.UNKNOWN,
        exit_code=entry.exit_code,
        reason=entry.reason,
        resumed_from=steps.resumed_from,
        first_step=steps.first_step,
        last_step=steps.last_step,
        code_digest=entry.code_digest,
        start=start_parts(entry.started, traces.first_events(folder, entry.attempt)),
    )


def _final_checkpoint(run: Run, key: str, folder: RunFolder, entries: Sequence[Entry]) -> StepId:
    """Return the newest checkpoint in the store, made or found there by the events; without any, by the store itself.

    Raises ``TrainError`` when there is none, ``StoreError`` when the store cannot say.
    """
    found = [
        StepId(event.data["step"], event.data.get("epoch", entry.epoch))
        for entry in entries
        if entry.epoch is not None
        for event in traces.rank_events(folder, entry.attempt, 0)
        if _is_stored(event)
    ]
    found = found or _provable(run, key)
    if not found:
        do = "look at the store and the attempt's log, then run train again"
        raise TrainError(must("final checkpoint", "in the store", "nowhere", folder.root, do))
    return max(found)


def _provable(run: Run, key: str) -> list[StepId]:
    """What the store itself can prove: events are deleted more easily than a checkpoint."""
    taken, reasons = candidates(survey_store(Store.open(run.store), run.name, key), ())
    for reason in reasons:
        _log.warning("not the final checkpoint: %s", reason)
    return [one.manifest.id for one in taken]


def _is_stored(event: Event) -> bool:
    """Whether an event speaks of a checkpoint in the store: one that was sent, or one that was taken up from there."""
    # What is taken up under another fence than its attempt's has its manifest in the store, wherever its files lay.
    return (event.kind == "durable" and event.data.get("where") == "store") or (
        event.kind == "restore" and "epoch" in event.data
    )


def _heldout(folder: RunFolder, entries: Sequence[Entry]) -> list[float]:
    events = [event for entry in entries for event in traces.rank_events(folder, entry.attempt, 0)]
    by_step = {event.data["step"]: float(event.data["loss"]) for event in events if event.kind == "heldout"}
    return [by_step[step] for step in sorted(by_step)]


def _mfu(run: Run, folder: RunFolder, entries: Sequence[Entry]) -> float | None:
    """MFU of the last attempt that made more than its first few steps."""
    from steelrail.train.metrics import read_rows

    rates = ([row.tokens_per_s for row in read_rows(folder.metrics(one.attempt))] for one in reversed(entries))
    return next((value for value in (usual_mfu(run, each) for each in rates) if value is not None), None)


def _placement(run: Run, frozen: Frozen) -> dict[str, str]:
    """Where and how it ran: recorded, and not in the key."""
    return {
        "partition": run.slurm.partition,
        "nodes": str(run.shape.nodes),
        "gpus_per_node": str(run.shape.gpus_per_node),
        "ranks_per_node": str(run.shape.ranks_per_node),
        "device": run.shape.device,
        "rack": run.shape.rack,
        "minutes": str(run.slurm.minutes),
        "code_digest": frozen.code_digest,
        "environment_digest": frozen.environment_digest,
        "container": describe(run) or "none",
        "usd_per_gpu_hour": frozen.usd_per_gpu_hour or "unknown",
        **{f"environment.{name}": value for name, value in sorted(run.slurm.environment.items())},
    }


def _input_digests(inputs: Inputs) -> dict[str, str]:
    init = {"init": inputs.init_digest} if inputs.init_digest else {}
    return {"shards": inputs.manifest.data_digest, **init}
