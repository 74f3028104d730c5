"""What a save costs the step loop, and how fast it is on disk: the trainer's own loop and checkpoints, one rank.

usage: python bench/save_stall.py (1b|demo) FOLDER [SAVES]

``1b``: the 1B shape on the GPU, bf16 compute, fp32 masters and moments. ``demo``: the demo's model on the CPU. FOLDER
stands for NVMe. There is no store: uploads fail, as while S3 is away, and are no part of this (bench/store_upload.py).
Exit code 1 when a save costs the loop more than 1 % of a minute, or is not what the state was.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from steelrail.artifacts.events import EventWriter
from steelrail.artifacts.trainer import RunFolder
from steelrail.checkpoints.edge import Checkpoints, open_checkpoints
from steelrail.checkpoints.snapshot import flatten, local_bytes
from steelrail.clients.ranks import RankPlace, free_port
from steelrail.clients.store import Store
from steelrail.config.schema import Run
from steelrail.train import edge
from steelrail.train.context import Clock, MetricsRow, TrainContext, TrainState
from steelrail.train.generators import generator_state
from steelrail.train.loop import run_steps
from steelrail.train.optimizer import state_for_checkpoint
from steelrail.train.parallel import local

GB, MINUTE, EPOCH, WARM_STEPS, QUIET_STEPS = 1e9, 60.0, 1, 8, 12
PLACE = RankPlace(rank=0, world_size=1, local_rank=0, node_rank=0, num_nodes=1, host="bench")
# The 1B shape of docs/measured.md: 16 blocks, 1.5 x 10^9 parameters with a head of its own.
TRAIN_1B = {
    "model": {
        "dim": 2048,
        "num_layers": 16,
        "num_heads": 32,
        "num_kv_heads": 8,
        "ffn_dim": 8192,
        "vocab_size": 128256,
    },
    "sequence_tokens": 8192,
    "global_batch_sequences": 1,
    "precision": "bf16",
}
TRAIN_DEMO = {
    "model": {"dim": 128, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2, "ffn_dim": 384, "vocab_size": 8192},
    "sequence_tokens": 256,
    "global_batch_sequences": 1,
    "precision": "fp32",
}


class EnoughError(Exception):
    """Everything was measured."""


@dataclass(frozen=True)
class Slice:
    """A batch as the loop wants it."""

    tokens: Any
    digest: int


@dataclass
class Save:
    """One save: what ``save`` held up, seconds until it was on disk, and the steps made meanwhile."""

    step: int
    held_seconds: float
    began: float
    written_seconds: float = 0.0
    step_seconds: list[float] = field(default_factory=list)


class Watch:
    """Asks for a save whenever the last is written and enough quiet steps were made; notes what each step took."""

    def __init__(self, checkpoints: Checkpoints, state: TrainState, device: torch.device, num_saves: int) -> None:
        self.checkpoints, self.state, self.device, self.num_saves = checkpoints, state, device, num_saves
        self.saves: list[Save] = []
        self.quiet: list[float] = []
        self.kept: dict[str, torch.Tensor] | None = None
        self._since = -WARM_STEPS

    def row(self, row: MetricsRow) -> None:
        """Note a step; after the last save and its quiet steps, end."""
        if self._writing():
            self._look(self.saves[-1], row.step_seconds)
            return
        self._since += 1
        if self._since > 0:
            self.quiet.append(row.step_seconds)
        if len(self.saves) >= self.num_saves and self._since >= QUIET_STEPS:
            raise EnoughError

    def _writing(self) -> bool:
        return bool(self.saves) and not self.saves[-1].written_seconds

    def _look(self, save: Save, step_seconds: float) -> None:
        save.step_seconds.append(step_seconds)
        if self.checkpoints.written(0.0):
            save.written_seconds = time.monotonic() - save.began
            self._since = 0

    def wants(self) -> bool:
        """Whether the loop should save after this step."""
        return self._since >= QUIET_STEPS - 1 and len(self.saves) < self.num_saves and not self._writing()

    def save(self, step: int, heldout_loss: float | None) -> None:
        """Save as a rank does. At the last one the state is kept on the device too, to be compared."""
        state = state_for_checkpoint(self.state.optimizer)
        if len(self.saves) == self.num_saves - 1:
            self.kept = {name: local(value).clone() for name, value in flatten(state).items()}
        began = time.monotonic()
        self.checkpoints.save(state, step, step, {}, generator_state(self.device))
        self.saves.append(Save(step, time.monotonic() - began, began))


def run_of(train: dict[str, Any], device: str, nvme: Path) -> Run:
    """Return a run of one rank whose store is nowhere."""
    fields = {
        "name": "stall",
        "corpus": {"paths": ["x"]},
        "shards": {"tokenizer": "x"},
        "store": {"bucket": "nowhere", "endpoint": "http://127.0.0.1:9", "retry_seconds": 1.0},
        "node": {"nvme": str(nvme)},
        "shape": {
            "nodes": 1,
            "gpus_per_node": 1,
            "ranks_per_node": 1,
            "device": device,
            "gpu": "h200-sxm" if device == "cuda" else "cpu",
        },
        "checkpoints": {"every_steps": 10_000_000, "max_behind": 1000},
        "train": {**train, "optimizer": {"learning_rate": 1e-4}, "steps": 1_000_000, "heldout_sequences": 0},
    }
    return Run.model_validate_json(json.dumps(fields))


def batches_of(run: Run) -> Iterator[Slice]:
    """Random tokens."""
    train, generator = run.train, np.random.default_rng(1)
    shape = (train.global_batch_sequences, 1, train.sequence_tokens + 1)
    while True:
        yield Slice(generator.integers(0, train.model.vocab_size, size=shape), 1)


def context_of(run: Run, device: torch.device, watch: Watch, folder: RunFolder) -> TrainContext:
    """Return what the loop is given."""
    return TrainContext(
        run=run,
        key="key",
        rank=0,
        world_size=1,
        local_rank=0,
        device=device,
        attempt=1,
        start_step=0,
        batches=lambda start: batches_of(run),
        heldout=(),
        save=watch.save,
        before_change=watch.checkpoints.before_change,
        beat=lambda step, doing: None,
        stop_requested=lambda: False,
        save_requested=watch.wants,
        events=EventWriter(folder.events(1, 0), 1, 0, "bench", time.time),
        folder=folder,
        export_folder=None,
        tokenizer=None,
        end_of_text_id=None,
    )


def build(run: Run, device: torch.device) -> TrainState:
    """Return the model with some weights, drawn on the device: which ones is of no matter."""
    state = edge.build(run, device)
    for parameter in state.optimizer.parameters.values():
        local(parameter.detach()).normal_(0.0, 0.02)
    return state


def damaged(watch: Watch) -> list[str]:
    """Return the names of what the last save holds otherwise than the state was."""
    kept, copied = watch.kept or {}, watch.checkpoints._copy._buffers
    return [name for name, value in kept.items() if not torch.equal(local(copied[name]), value.cpu())]


def tell(watch: Watch, size_bytes: int) -> float:
    """Print the table; return the seconds that a save after the first cost the loop (median)."""
    quiet = statistics.median(watch.quiet)
    print(f"state {size_bytes / GB:.3f} GB; step {quiet * 1e3:.1f} ms, p50 of {len(watch.quiet)} with nothing written")
    names = ("next step +ms", "all steps +ms", "steps")
    print(f"{'save':>5} {'held ms':>9} {names[0]:>14} {names[1]:>14} {names[2]:>6} {'on disk s':>10} {'GB/s':>6}")
    costs = []
    for number, save in enumerate(watch.saves, 1):
        extra = sum(save.step_seconds) - quiet * len(save.step_seconds)
        costs.append(save.held_seconds + max(0.0, extra))
        times = f"{save.held_seconds * 1e3:9.1f} {(save.step_seconds[0] - quiet) * 1e3:14.1f} {extra * 1e3:14.1f}"
        rate = size_bytes / GB / save.written_seconds
        print(f"{number:5} {times} {len(save.step_seconds):6} {save.written_seconds:10.2f} {rate:6.2f}")
    print("held: what the save call took; next step: what its update waited for the copy; on disk: written and hashed")
    return statistics.median(costs[1:] or costs)


def main(which: str, place: Path, num_saves: int) -> int:
    """Measure, print, and return the exit code."""
    device = torch.device("cuda", 0) if which == "1b" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)  # as the demo's ranks have
    with tempfile.TemporaryDirectory(dir=place, prefix="steelrail-stall-") as name:
        run = run_of(TRAIN_1B if which == "1b" else TRAIN_DEMO, device.type, Path(name))
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=f"tcp://127.0.0.1:{free_port()}",
            rank=0,
            world_size=1,
        )
        state = build(run, device)
        folder, store = RunFolder(Path(name) / "run"), Store.open(run.store)
        checkpoints = open_checkpoints(
            store, run.name, "key", EPOCH, Path(name), PLACE, run.checkpoints, lambda kind, **data: None
        )
        began = time.monotonic()
        checkpoints._copy.prepare(flatten(state_for_checkpoint(state.optimizer)))
        if checkpoints._copy._making is not None:
            checkpoints._copy._making.join()
            print(f"host memory page-locked in {time.monotonic() - began:.2f} s (in a run: by a thread at the start)")
        watch = Watch(checkpoints, state, device, num_saves)
        _train(run, device, watch, folder)
        size_bytes, bad = local_bytes(flatten(state_for_checkpoint(state.optimizer))), damaged(watch)
        cost = tell(watch, size_bytes)
        if device.type == "cuda":
            peak = torch.cuda.max_memory_allocated() / GB
            print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, peak {peak:.1f} GB")
    share = 100 * cost / MINUTE
    print(f"a save costs the loop {cost:.3f} s: {share:.2f} % of a minute; {len(bad)} tensors damaged {bad[:3]}")
    return 0 if cost <= MINUTE / 100 and not bad else 1


def _train(run: Run, device: torch.device, watch: Watch, folder: RunFolder) -> None:
    clock = Clock(time.time, time.monotonic, time.sleep)
    try:
        run_steps(context_of(run, device, watch, folder), watch.state, clock, watch.row)
    except EnoughError:
        return


if __name__ == "__main__":
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "none")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "none")
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    logging.getLogger("steelrail").setLevel(logging.CRITICAL)  # that the store is away, every 5 s
    code = main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else 3)
    sys.stdout.flush()
    # As a rank ends in life: the uploader's thread, which still looks for a store, is not waited for.
    os._exit(code)
