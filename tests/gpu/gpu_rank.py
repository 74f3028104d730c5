"""One rank of a training run on a GPU, for the tests beside it: ``python gpu_rank.py TRAIN_JSON FOLDER [EARLIER]``.

Rank, world size and meeting place come from torch's usual variables. It saves into FOLDER, and goes on from the save of
step 10 of the folder EARLIER. Prints one JSON line with what it saw.
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
from steelrail.formats.nccl import parse_log
from steelrail.train import edge
from steelrail.train.context import TrainContext, TrainState
from steelrail.train.deterministic import choices, departure, pinned
from steelrail.train.metrics import read_rows
from steelrail.train.optimizer import load_state, state_for_checkpoint
from steelrail.train.parallel import local
from steelrail.train.plan import plan

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SAVED_STEP = 10


@dataclass(frozen=True)
class Slice:
    tokens: Any
    digest: int


def run_of(train: dict[str, Any]) -> Run:
    shape = {"nodes": 1, "gpus_per_node": RANKS, "ranks_per_node": RANKS, "gpu": "h200-sxm"}
    fields = {"name": "gpu", "corpus": {"paths": ["x"]}, "shards": {"tokenizer": "x"}, "store": {"bucket": "steelrail"}}
    saves = {"every_steps": SAVED_STEP}
    return Run.model_validate_json(json.dumps({**fields, "shape": shape, "train": train, "checkpoints": saves}))


def batches_of(run: Run, start_step: int) -> Any:
    """Arithmetic sequences: a function of the step and the sequence's place alone."""
    train, each = run.train, run.train.global_batch_sequences // RANKS
    for step in range(start_step, train.steps):
        generator = np.random.default_rng(step)
        start, stride = generator.integers(0, 500, size=(2, train.global_batch_sequences, 1))
        tokens = (start + (stride % 2 + 1) * np.arange(train.sequence_tokens + 1)) % train.model.vocab_size
        mine = tokens[RANK * each : (RANK + 1) * each].astype(np.int64)
        yield Slice(mine.reshape(-1, train.micro_batch_sequences, train.sequence_tokens + 1), int(mine.sum()))


def save(run: Run, state: TrainState, root: Path, step: int) -> None:
    """Keep this rank's part of the state, and what a checkpoint says beside it."""
    parts = state_for_checkpoint(state.optimizer)
    plain = {kind: {name: local(one).cpu() for name, one in part.items()} for kind, part in parts.items()}
    torch.save(plain, root / f"state-{RANK}-{step}.pt")
    said = choices(run, os.environ, edge.versions(run))
    (root / f"said-{RANK}-{step}.json").write_text(json.dumps(said))


def restore(run: Run, state: TrainState, earlier: Path) -> str | None:
    """Fill the state from an earlier run's save; return where its bits depart from that run's."""
    saved = torch.load(earlier / f"state-{RANK}-{SAVED_STEP}.pt", weights_only=True)
    for kind, part in state_for_checkpoint(state.optimizer).items():
        for name, tensor in part.items():
            local(tensor).copy_(saved[kind][name])
    load_state(state.optimizer, SAVED_STEP)
    said = json.loads((earlier / f"said-{RANK}-{SAVED_STEP}.json").read_text())
    return departure(run, said, choices(run, os.environ, edge.versions(run)), SAVED_STEP)


def ask_nccl_to_say(log: Path) -> None:
    """Have rank 0's NCCL write down what it chooses."""
    if RANK == 0:
        said = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,TUNING", "NCCL_DEBUG_FILE": str(log)}
        os.environ.update(said)


def what_nccl_chose(log: Path) -> dict[str, Any]:
    """Its channels, and each collective with the algorithm and protocol that carried it."""
    if not log.exists():
        return {}
    found = parse_log(log.read_text(errors="replace"))
    ways = sorted({(one.collective, one.algorithm, one.protocol) for one in found.choices})
    return {"channels": found.num_channels, "ways": ways}


def context_of(run: Run, folder: RunFolder, state: TrainState, start_step: int) -> TrainContext:
    return TrainContext(
        run=run,
        key="key",
        rank=RANK,
        world_size=RANKS,
        local_rank=RANK,
        device=torch.device("cuda", RANK),
        attempt=1,
        start_step=start_step,
        batches=lambda start: batches_of(run, start),
        heldout=(),
        before_change=lambda: None,
        roll_back=lambda step, why: None,
        save=lambda step, heldout_loss: save(run, state, folder.root, step),
        beat=lambda step, doing: None,
        stop_requested=lambda: False,
        save_requested=lambda: False,
        events=EventWriter(folder.events(1, RANK), 1, RANK, "host", time.time),
        folder=folder,
        export_folder=None,
        tokenizer=None,
        end_of_text_id=None,
    )


def main(train: dict[str, Any], root: Path, earlier: Path | None) -> None:
    device = torch.device("cuda", RANK)
    torch.cuda.set_device(device)
    run, folder = run_of(train), RunFolder(root)
    os.environ.update(pinned(run, os.environ))
    ask_nccl_to_say(root / "nccl.log")
    dist.init_process_group("nccl", device_id=device)
    started = time.monotonic()
    state = edge.build(run, device)
    departed = None
    if earlier is None:
        edge.first_weights(run, state, lambda: None)
    else:
        departed = restore(run, state, earlier)
    build_seconds = time.monotonic() - started
    edge.train(context_of(run, folder, state, SAVED_STEP if earlier else 0), state)
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
        "said": choices(run, os.environ, edge.versions(run)),
        "departed": departed,
        "nccl": what_nccl_chose(root / "nccl.log") if RANK == 0 else {},
    }
    sys.stdout.write("SEEN " + json.dumps(seen) + "\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]), Path(sys.argv[3]) if sys.argv[3:] else None)
