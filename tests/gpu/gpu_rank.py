"""One rank of a training run on a GPU, for the tests beside it: ``python gpu_rank.py TRAIN_JSON FOLDER``.

Rank, world size and meeting place come from torch's usual variables. Prints one JSON line with what it saw.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from steelrail.artifacts.events import EventWriter, read_events
from steelrail.artifacts.trainer import RunFolder
from steelrail.config.schema import Run
from steelrail.train import edge
from steelrail.train.context import TrainContext
from steelrail.train.metrics import read_rows
from steelrail.train.plan import plan

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@dataclass(frozen=True)
class Slice:
    tokens: Any
    digest: int


def run_of(train: dict[str, Any]) -> Run:
    shape = {"nodes": 1, "gpus_per_node": RANKS, "ranks_per_node": RANKS, "gpu": "h200-sxm"}
    fields = {"name": "gpu", "corpus": {"paths": ["x"]}, "shards": {"tokenizer": "x"}, "store": {"bucket": "steelrail"}}
    return Run.model_validate_json(json.dumps({**fields, "shape": shape, "train": train}))


def batches_of(run: Run, start_step: int) -> Any:
    """Arithmetic sequences: a function of the step and the sequence's place alone."""
    train, each = run.train, run.train.global_batch_sequences // RANKS
    for step in range(start_step, train.steps):
        generator = np.random.default_rng(step)
        start, stride = generator.integers(0, 500, size=(2, train.global_batch_sequences, 1))
        tokens = (start + (stride % 2 + 1) * np.arange(train.sequence_tokens + 1)) % train.model.vocab_size
        mine = tokens[RANK * each : (RANK + 1) * each].astype(np.int64)
        yield Slice(mine.reshape(-1, train.micro_batch_sequences, train.sequence_tokens + 1), int(mine.sum()))


def context_of(run: Run, folder: RunFolder) -> TrainContext:
    return TrainContext(
        run=run,
        key="key",
        rank=RANK,
        world_size=RANKS,
        local_rank=RANK,
        device=torch.device("cuda", RANK),
        attempt=1,
        start_step=0,
        batches=lambda start: batches_of(run, start),
        heldout=(),
        save=lambda step: None,
        beat=lambda step, doing: None,
        stop_requested=lambda: False,
        save_requested=lambda: False,
        events=EventWriter(folder.events(1, RANK), 1, RANK, "host", time.time),
        folder=folder,
        export_folder=None,
        tokenizer=None,
        end_of_text_id=None,
    )


def main(train: dict[str, Any], root: Path) -> None:
    device = torch.device("cuda", RANK)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    run, folder = run_of(train), RunFolder(root)
    started = time.monotonic()
    state = edge.build(run, device)
    build_seconds = time.monotonic() - started
    edge.train(context_of(run, folder), state)
    steps = [event for event in read_events(folder.events(1, RANK)) if event.kind == "step"]
    rows = list(read_rows(folder.metrics(1))) if RANK == 0 else []
    seen = {
        "rank": RANK,
        "build_seconds": build_seconds,
        "losses": [row.loss for row in rows],
        "grad_norms": [row.grad_norm for row in rows],
        "step_seconds": [row.step_seconds for row in rows],
        "communication": [event.data["seconds"]["communication"] for event in steps],
        "stretch": [event.time - event.data["start"] for event in steps],
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "planned_bytes": plan(run).memory.total,
    }
    sys.stdout.write("SEEN " + json.dumps(seen) + "\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
