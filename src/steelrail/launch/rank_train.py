"""The part of a rank's life that needs torch: meet, check, stage in, restore, train, flush. An edge."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist

from steelrail import log
from steelrail.artifacts.files import read_artifact
from steelrail.artifacts.shards import DataShard, ShardsManifest
from steelrail.checkpoints.edge import Checkpoints
from steelrail.checkpoints.lineage import left_out
from steelrail.clients import clock
from steelrail.clients.ranks import Master
from steelrail.clients.store import Store
from steelrail.errors import NodeError, StoreError, TrainError, must
from steelrail.fabric.quick import quick_check
from steelrail.launch import ledger, traces
from steelrail.launch.inputs import admitting_fabric
from steelrail.launch.interval import Rhythm, mtbf
from steelrail.launch.lead import MARGIN_SECONDS, flush_seconds, lead_seconds
from steelrail.launch.meet import CulpritError, check_company, join, take_device
from steelrail.launch.resume import Resumed, resume, roll_back, said_of_a_save
from steelrail.shards.loader import (
    Batch,
    HeldoutBatch,
    RankPlan,
    SequenceSource,
    heldout_batches,
    order_of_need,
    rank_batches,
)
from steelrail.shards.order import Order
from steelrail.shards.part import shards_folder
from steelrail.shards.stagein import Follower, stage_in
from steelrail.train import flight
from steelrail.train.context import Outcome, TrainContext, TrainState
from steelrail.train.deterministic import pinned
from steelrail.train.edge import build, train
from steelrail.train.generators import generator_state
from steelrail.train.history import to_plain
from steelrail.train.optimizer import state_for_checkpoint

if TYPE_CHECKING:
    from steelrail.launch.rank import Rank

_log = log.logger(__name__)
_FLUSH_SLICE_SECONDS = 5.0
_LAST_FLUSH_SECONDS = 3600.0
_TERM_FLUSH_SECONDS = 5.0
_FIRST_STEPS = 8
EXPORT = "export"


class Staging(Protocol):
    """One node's copy of the data shards, as its ranks see it."""

    def wait_for(self, names: Iterable[str]) -> None:
        """Return when these data shards are on NVMe and verified."""


@dataclass(frozen=True)
class Data:
    """This rank's view of the data shards. ``staging`` still copies in the background."""

    manifest: ShardsManifest
    order: Order
    plan: RankPlan
    source: SequenceSource
    heldout: SequenceSource | None
    staging: Staging


def train_rank(rank: Rank, at: Master) -> Outcome:
    """Take part in training to its end; return what that was."""
    device = take_device(rank.run, rank.place)
    # NCCL reads them once, when the first group of ranks is made.
    os.environ.update({**flight.VARIABLES, **os.environ, **pinned(rank.run, os.environ)})
    rank.pulse.beat(None, "meet")
    join(rank.place, at, device, rank.run.launch.startup_seconds)
    rank.pulse.pending = flight.pending
    rank.events.write("note", text=check_company(rank.run, rank.place, device))
    rank.events.write("reached", what="collective")
    _check_fabric(rank, device)
    data = _begin_staging(rank)
    # Back to start-up, not a second time: its drills have been.
    rank.events.enter("startup")
    rank.pulse.beat(None, "build")
    state = build(rank.run, device)
    resumed = resume(rank, state, device)
    heldout = _finish_staging(rank, data, resumed.step)
    for category in ("idle", "lost", "unattributed"):
        if any(drill.where == category for drill in rank.run.drills):
            rank.enter(category, "drill")
    context = _context(rank, device, state, data, heldout, resumed)
    outcome = train(context, state)
    if outcome is Outcome.ROLLED_BACK:
        # Nobody waits for uploads: the save to go back to is written, and the next attempt sends what is worth it.
        resumed.checkpoints.close()
    else:
        _flush(rank, resumed.checkpoints, outcome)
    return outcome


def leave() -> None:
    """Wait for the other ranks to be as far, so that none is ended by another's leaving."""
    with contextlib.suppress(RuntimeError, ValueError):
        dist.barrier()


def _check_fabric(rank: Rank, device: torch.device) -> None:
    rank.enter("fabric_check", "fabric check")
    result = quick_check(rank.run, rank.place, device, admitting_fabric(rank.run), clock.monotonic)
    rank.events.write("check", ok=result.ok, detail=result.detail)
    if not result.ok:
        culprit = result.culprits[0] if result.culprits else None
        do = "the job goes on without it where it can; see steelrail fabric"
        raise CulpritError(
            must("links and GPUs", "fit to train on", f"unfit: {result.detail}", "quick check", do), culprit
        )


def _begin_staging(rank: Rank) -> Data:
    """Begin to copy data shards, those of the steps that are expected next first; one rank a node copies."""
    rank.enter("staging", "stage in")
    run, place = rank.run, rank.place
    # Not the run's present one: its data may be made anew while the job of this key lives.
    manifest = read_artifact(rank.folder.shards_manifest, ShardsManifest)
    train = run.train
    plan = RankPlan(place.rank, place.world_size, train.global_batch_sequences, train.micro_batch_sequences)
    folder = shards_folder(run)
    shards = _needed(run.train.heldout_sequences, manifest.data_shards)
    bare = SequenceSource(folder, shards, "train", train.sequence_tokens)
    order = Order(bare.num_sequences, train.seed)
    expected = max(0, traces.newest_durable(rank.folder, rank.attempt))
    staging = _staging(rank, _by_need(bare, order, shards, plan, expected, train.steps))
    source = SequenceSource(folder, shards, "train", train.sequence_tokens, staging.wait_for)
    heldout = None
    if train.heldout_sequences:
        heldout = SequenceSource(folder, shards, "heldout", train.sequence_tokens, staging.wait_for)
    return Data(manifest, order, plan, source, heldout, staging)


def _staging(rank: Rank, shards: Sequence[DataShard]) -> Staging:
    if rank.place.local_rank != 0:
        return Follower(shards, shards_folder(rank.run), rank.run.launch.startup_seconds)
    return stage_in(rank.run, shards, lambda size_bytes: rank.pulse.beat(rank.pulse.step, rank.pulse.doing))


def _needed(heldout_sequences: int, shards: Sequence[DataShard]) -> list[DataShard]:
    return [shard for shard in shards if shard.split == "train" or heldout_sequences]


def _by_need(
    source: SequenceSource, order: Order, shards: Sequence[DataShard], plan: RankPlan, step: int, steps: int
) -> list[DataShard]:
    """Held-out shards, those of the first steps in order of need, then the rest."""
    count = min(_FIRST_STEPS, max(0, steps - step))
    first = order_of_need(source, order, plan.batch_sequences, step, count)
    heldout = [shard for shard in shards if shard.split == "heldout"]
    return list({shard.name: shard for shard in (*heldout, *first, *shards)}.values())


def _finish_staging(rank: Rank, data: Data, start_step: int) -> Sequence[HeldoutBatch]:
    """Wait for what the first steps and the held-out loss need; the rest comes while training goes on."""
    rank.events.enter("staging")
    rank.pulse.beat(None, "stage in")
    count = min(_FIRST_STEPS, max(0, rank.run.train.steps - start_step))
    first = order_of_need(data.source, data.order, data.plan.batch_sequences, start_step, count)
    data.staging.wait_for(shard.name for shard in first)
    heldout = heldout_batches(data.heldout, rank.run.train.heldout_sequences, data.plan) if data.heldout else []
    rank.events.write("staged", bytes=sum(shard.size_bytes for shard in first), files=len(first))
    return heldout


def _context(
    rank: Rank,
    device: torch.device,
    state: TrainState,
    data: Data,
    heldout: Sequence[HeldoutBatch],
    resumed: Resumed,
) -> TrainContext:
    run, place, checkpoints = rank.run, rank.place, resumed.checkpoints
    tokens = run.train.global_batch_sequences * run.train.sequence_tokens
    rhythm = _rhythm(rank)

    def batches(step: int) -> Iterator[Batch]:
        return rank_batches(data.source, data.order, data.plan, step, run.train.steps)

    def save(step: int, heldout_loss: float | None) -> None:
        said = {**said_of_a_save(rank, heldout_loss), **to_plain(state.history)}
        stall_seconds = checkpoints.save(
            state_for_checkpoint(state.optimizer), step, step * tokens, said, generator_state(device)
        )
        if rhythm is not None:
            rhythm.saved(step, stall_seconds)

    tokenizer = Path(run.shards.tokenizer) if run.shards.tokenizer_format == "huggingface" else None
    return TrainContext(
        run=run,
        key=rank.key,
        rank=place.rank,
        world_size=place.world_size,
        local_rank=place.local_rank,
        device=device,
        attempt=rank.attempt,
        start_step=resumed.step,
        batches=batches,
        heldout=heldout,
        save=save,
        before_change=checkpoints.before_change,
        roll_back=lambda step, why: roll_back(rank, checkpoints, step, why),
        beat=rank.pulse.beat,
        stop_requested=rank.ears.asked,
        save_requested=lambda: rhythm is not None and rhythm.due(checkpoints.newest_durable_step or 0),
        events=rank.events,
        folder=rank.folder,
        export_folder=rank.folder.root / EXPORT if run.train.export else None,
        tokenizer=tokenizer,
        end_of_text_id=data.manifest.tokenizer.end_of_text_id,
        epoch_sequences=data.order.num_sequences,
        leave_out=left_out(resumed.rollbacks),
        rollbacks=len(resumed.rollbacks),
    )


def _rhythm(rank: Rank) -> Rhythm | None:
    """Return what asks for saves in time: on rank 0 alone, where the run leaves the interval to us."""
    run = rank.run
    if run.checkpoints.interval == "fixed" or rank.place.rank != 0:
        return None
    mtbf_seconds = mtbf(ledger.read(rank.folder), max(1, run.shape.num_gpus), clock.now())
    return Rhythm(run.checkpoints, mtbf_seconds, clock.monotonic, lambda text: rank.events.write("note", text=text))


def _flush(rank: Rank, checkpoints: Checkpoints, outcome: Outcome) -> None:
    """Have every save durable: for good after the last step, as far as time allows after a signal."""
    rank.events.enter("checkpoint")
    done, began = outcome is Outcome.DONE, clock.monotonic()
    _await_written(rank, checkpoints, began + _writing_seconds(rank, done))
    until = (clock.monotonic() if done else began) + _patience(rank, done)
    while True:
        # Every slice is one decision of all ranks: the clock of rank 0 alone must not end the loop.
        rank.pulse.beat(rank.pulse.step, "flush")
        durable = checkpoints.flush(_FLUSH_SLICE_SECONDS)
        if durable or _agreed(clock.monotonic() >= until):
            break
    checkpoints.close()
    if done and not durable:
        do = "mend the store and run train again: the last save is on NVMe"
        fault = f"not ({checkpoints.upload_fault or 'uploads are slow'})"
        raise StoreError(must("last checkpoint", "in the store", fault, repr(Store.open(rank.run.store)), do))
    if done and checkpoints.newest_durable_step != rank.run.train.steps:
        do = "mend what it names and run train again: it resumes from the checkpoint before"
        fault = f"not ({checkpoints.save_fault or 'it failed'})"
        raise NodeError(must("last save", "on NVMe and in the store", fault, rank.run.node.nvme, do))


def _await_written(rank: Rank, checkpoints: Checkpoints, until: float) -> None:
    """Wait until the last save is written on every rank: agreed on the default group, as saving has the other."""
    while True:
        rank.pulse.beat(rank.pulse.step, "last save")
        if not _agreed(not checkpoints.written(_FLUSH_SLICE_SECONDS)):
            return
        if _agreed(clock.monotonic() >= until):
            do = "see the speed of NVMe, or raise slurm.lead_seconds; the next attempt resumes from the save before"
            raise TrainError(must("last save", "written in time", "not", rank.run.node.nvme, do))


def _writing_seconds(rank: Rank, done: bool) -> float:
    """Seconds for NVMe alone: after a signal nearly all of the lead, since an unwritten save is lost."""
    lead = lead_seconds(rank.run, rank.folder, rank.attempt)
    return _LAST_FLUSH_SECONDS if done else lead - min(MARGIN_SECONDS, lead / 2)


def _patience(rank: Rank, done: bool) -> float:
    if done:
        return min(_LAST_FLUSH_SECONDS, 10 * rank.run.store.retry_seconds + 60)
    # After TERM the kill comes within Slurm's KillWait; what is on NVMe is uploaded by the next attempt.
    term = rank.ears.heard is signal.SIGTERM
    return _TERM_FLUSH_SECONDS if term else flush_seconds(rank.run, rank.folder, rank.attempt)


def _agreed(mine: bool) -> bool:
    flag = torch.tensor([int(mine)])
    if dist.get_backend() == "nccl":
        flag = flag.cuda()
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())
