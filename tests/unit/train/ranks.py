"""Runs training scenarios on real gloo ranks, for the tests beside it: ``python ranks.py SCENARIO_FOLDER``.

One process imports torch once and forks the ranks of each scenario: a scenario costs well under a second.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.utils.tensorboard  # once, before the ranks are forked: it is slow

from steelrail.artifacts.events import EventWriter, read_events
from steelrail.artifacts.trainer import RunFolder
from steelrail.config.schema import Run
from steelrail.train import edge, loop
from steelrail.train.communication import Waits, time_collectives
from steelrail.train.context import Clock, TrainContext, TrainState
from steelrail.train.export import write_weights
from steelrail.train.history import take_up, to_plain
from steelrail.train.loop import run_steps
from steelrail.train.metrics import read_rows
from steelrail.train.optimizer import load_state, make_optimizer, state_for_checkpoint
from steelrail.train.parallel import build_model, initialise, local, make_mesh

SEQUENCE, BATCH, STEPS, VOCAB = 16, 8, 6, 61


@dataclass(frozen=True)
class Slice:
    tokens: Any
    digest: int


@dataclass(frozen=True)
class Heldout:
    tokens: Any
    weights: Any


class StoppedClock:
    """Time that moves while somebody sleeps, else a microsecond a look: exact, however busy the machine is."""

    def __init__(self) -> None:
        self.time = 1e9

    def now(self) -> float:
        self.time += 2.0**-20
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def run_of(ranks: int, **changes: Any) -> Run:
    """A tiny run; ``changes`` are dotted settings with __ for dots."""
    data: dict[str, Any] = {
        "name": "tiny",
        "corpus": {"paths": ["x"]},
        "shards": {"tokenizer": "x"},
        "shape": {"nodes": ranks, "gpus_per_node": 1, "ranks_per_node": 1, "device": "cpu", "gpu": "cpu"},
        "store": {"bucket": "steelrail"},
        "checkpoints": {"every_steps": 3},
        "train": {
            "model": {
                "dim": 24,
                "num_layers": 2,
                "num_heads": 4,
                "num_kv_heads": 2,
                "ffn_dim": 40,
                "vocab_size": VOCAB,
            },
            "optimizer": {"learning_rate": 0.01, "warmup_steps": 2, "clip_norm": 0.5},
            "steps": STEPS,
            "sequence_tokens": SEQUENCE,
            "global_batch_sequences": BATCH,
            "precision": "fp32",
            "heldout_every_steps": 3,
            "heldout_sequences": 5,
        },
    }
    for path, value in changes.items():
        *sections, last = path.split("__")
        place = data
        for section in sections:
            place = place[section]
        place[last] = value
    return Run.model_validate_json(json.dumps(data))


def corpus() -> Any:
    """Tokens with some order in them, so that the loss can fall: uint32 (sequences, SEQUENCE + 1)."""
    generator = np.random.default_rng(7)
    start = generator.integers(0, VOCAB, size=(STEPS * BATCH + 5, 1))
    stride = generator.integers(1, 4, size=(STEPS * BATCH + 5, 1))
    return ((start + stride * np.arange(SEQUENCE + 1)) % VOCAB).astype(np.uint32)


def batches_of(run: Run, rank: int, ranks: int, start_step: int, noise: int | None = None) -> Any:
    """This rank's batches; that of step ``noise`` is one token over and over, which no other sequence looks like."""
    each = BATCH // ranks
    for step in range(start_step, STEPS):
        first = step * BATCH + rank * each
        tokens = corpus()[first : first + each].astype(np.int64)
        if step + 1 == noise:
            tokens = np.zeros_like(tokens)
        micro_batches = tokens.reshape(-1, run.train.micro_batch_sequences, SEQUENCE + 1)
        yield Slice(micro_batches, int(tokens.sum()) + 2**62)


def heldout_of(rank: int, ranks: int) -> list[Heldout]:
    """Five sequences over the ranks, one a batch, filled up with padding of weight 0."""
    rows = corpus()[STEPS * BATCH :].astype(np.int64)
    places = range(rank, -(-len(rows) // ranks) * ranks, ranks)
    return [Heldout(rows[at % len(rows)][None], np.array([at < len(rows)], np.float32)) for at in places]


# A GPU copies the state after the save has returned: here the latest moment that is allowed.
LATER: list[Callable[[], None]] = []


def do_what_was_put_off() -> None:
    while LATER:
        LATER.pop(0)()


def save_state(state: TrainState, path: Path) -> None:
    tensors = state_for_checkpoint(state.optimizer)
    plain = {kind: {name: local(one).clone() for name, one in part.items()} for kind, part in tensors.items()}
    torch.save(plain, path)


def context_of(
    run: Run, rank: int, ranks: int, root: Path, scenario: dict[str, Any], state: TrainState, now: Any
) -> TrainContext:
    folder = RunFolder(root)
    attempt = scenario.get("attempt", 1)
    beats: list[str] = []

    def save(step: int, heldout_loss: float | None) -> None:
        (root / f"saved-{rank}-{step}").write_text(f"{heldout_loss}")
        LATER.append(lambda: save_state(state, root / f"state-{rank}-{step}.pt"))
        (root / f"history-{rank}-{step}.json").write_text(json.dumps(to_plain(state.history)))

    def beat(step: int, doing: str) -> None:
        beats.append(f"{step} {doing}")
        if doing == "step" and scenario.get("poison") == step:
            local(next(state.model.parameters())).fill_(float("nan"))

    return TrainContext(
        run=run,
        key="key",
        rank=rank,
        world_size=ranks,
        local_rank=rank,
        device=torch.device("cpu"),
        attempt=attempt,
        start_step=scenario.get("start", 0),
        batches=lambda start: batches_of(run, rank, ranks, start, scenario.get("noise")),
        heldout=heldout_of(rank, ranks),
        save=save,
        before_change=do_what_was_put_off,
        roll_back=lambda step, why: (root / f"rolled-back-{rank}").write_text(f"{step} {why}") and None,
        beat=beat,
        stop_requested=lambda: (
            scenario.get("stop") is not None and rank == ranks - 1 and f"{scenario['stop']} step" in beats
        ),
        save_requested=lambda: (
            scenario.get("save") is not None and rank == 0 and beats[-1] == f"{scenario['save']} step"
        ),
        events=EventWriter(folder.events(attempt, rank), attempt, rank, "host", now),
        folder=folder,
        export_folder=root / "export" if scenario.get("export") else None,
        tokenizer=None,
        end_of_text_id=None,
        epoch_sequences=scenario.get("epoch"),
        leave_out=frozenset(scenario.get("leave_out", ())),
        rollbacks=scenario.get("rollbacks", 0),
    )


def state_of(run: Run, scenario: dict[str, Any]) -> TrainState:
    state = edge.build(run, torch.device("cpu"))
    replicas = scenario.get("replicas", 1)
    if "resume_from" in scenario:
        return spoiled(state)
    if replicas == 1:
        edge.first_weights(run, state, lambda: None)
        return state
    mesh = make_mesh("cpu", dist.get_world_size(), replicas)
    train = run.train
    model = build_model(train.model, mesh, torch.device("cpu"), train.precision, train.recompute, regather=True)
    initialise(model, train.seed, lambda: None)
    time_collectives(model, state.waits)
    return TrainState(model, make_optimizer(model, train.optimizer), mesh, state.waits)


def spoiled(state: TrainState) -> TrainState:
    """The state with the worst that memory can hold before a restore."""
    for part in state_for_checkpoint(state.optimizer).values():
        for tensor in part.values():
            local(tensor).fill_(float("nan"))
    return state


def one_rank(rank: int, ranks: int, root: Path, scenario: dict[str, Any], meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    run = run_of(ranks, **scenario.get("changes", {}))
    state = state_of(run, scenario)
    if "resume_from" in scenario:
        saved = torch.load(Path(scenario["resume_from"]) / f"state-{rank}-{scenario['start']}.pt", weights_only=True)
        live = state_for_checkpoint(state.optimizer)
        for kind, part in saved.items():
            for name, tensor in part.items():
                local(live[kind][name]).copy_(tensor)
        said = Path(scenario["resume_from"]) / f"history-{rank}-{scenario['start']}.json"
        take_up(state.history, json.loads(said.read_text()))
        load_state(state.optimizer, scenario["start"] - len(state.history.skipped))
    state.history.losses.extend(scenario.get("tail", [[]] * ranks)[rank])
    if "without_update" in scenario:
        leave_out(scenario["without_update"])
    try:
        outcome = outcome_of(run, rank, ranks, root, scenario, state)
    finally:
        do_what_was_put_off()
    (root / f"outcome-{rank}").write_text(outcome)
    dist.destroy_process_group()


def outcome_of(run: Run, rank: int, ranks: int, root: Path, scenario: dict[str, Any], state: TrainState) -> str:
    if scenario.get("stopped_clock"):
        return run_on_stopped_clock(run, rank, ranks, root, scenario, state)
    if scenario.get("only_export"):
        write_weights(run, state, root / "export", None, 3, scenario["only_export"])
        return "exported"
    return edge.train(context_of(run, rank, ranks, root, scenario, state, time.time), state).name


def leave_out(steps: list[int]) -> None:
    """Have the loop's update of some steps do nothing, by other means than the loop's own."""
    made, numbers = loop.update, itertools.count(1)
    loop.update = lambda *arguments: made(*arguments) if next(numbers) not in steps else None


def run_on_stopped_clock(
    run: Run, rank: int, ranks: int, root: Path, scenario: dict[str, Any], state: TrainState
) -> str:
    stopped = StoppedClock()
    waits = Waits(stopped.now, torch.device("cpu"))
    time_collectives(state.model, waits)
    context = context_of(run, rank, ranks, root, scenario, state, stopped.now)
    clock = Clock(stopped.now, stopped.now, stopped.sleep)
    return run_steps(context, replace(state, waits=waits), clock, lambda row: None).name


def fork_rank(rank: int, ranks: int, root: Path, scenario: dict[str, Any], meeting: str) -> int:
    child = os.fork()
    if child:
        return child
    code = 0
    try:
        one_rank(rank, ranks, root, scenario, meeting)
    except BaseException as error:  # noqa: BLE001 - a forked rank must never return into the parent's code
        (root / f"error-{rank}").write_text(f"{type(error).__name__}: {error}\n\n{traceback.format_exc()}")
        code = 1
    os._exit(code)


def results_of(root: Path, attempt: int, ranks: int) -> dict[str, Any]:
    """What a scenario left behind, as plain values."""
    folder = RunFolder(root)
    events = [
        [asdict(event) for event in read_events(folder.events(attempt, rank))]
        for rank in range(ranks)
        if folder.events(attempt, rank).exists()
    ]
    return {
        "root": str(root),
        "rows": [asdict(row) for row in read_rows(folder.metrics(attempt))],
        "events": events,
        "outcomes": [path.read_text() for path in sorted(root.glob("outcome-*"))],
        "errors": [path.read_text() for path in sorted(root.glob("error-*"))],
        "saved": sorted(path.name.removeprefix("saved-") for path in root.glob("saved-*")),
        "rolled_back": [path.read_text() for path in sorted(root.glob("rolled-back-*"))],
        "saved_losses": {path.name.removeprefix("saved-"): path.read_text() for path in root.glob("saved-*")},
    }


def main(folder: Path) -> None:
    scenarios = json.loads((folder / "scenarios.json").read_text())
    results = {}
    for name, scenario in scenarios.items():
        root = folder / name
        root.mkdir()
        ranks = scenario["ranks"]
        meeting = tempfile.mktemp(dir=folder)
        children = [fork_rank(rank, ranks, root, scenario, meeting) for rank in range(ranks)]
        for child in children:
            os.waitpid(child, 0)
        results[name] = results_of(root, scenario.get("attempt", 1), ranks)
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
