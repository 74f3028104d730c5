"""Training's door to the outside: process-wide settings, metrics files, exported weights."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

import torch
import torch.distributed as dist

from steelrail.artifacts.files import on_results
from steelrail.clients import clock
from steelrail.config.schema import Run
from steelrail.log import logger
from steelrail.train.communication import Waits, time_collectives
from steelrail.train.context import Clock, MetricsRow, Outcome, TrainContext, TrainState
from steelrail.train.export import write_weights
from steelrail.train.loop import Record, run_steps
from steelrail.train.optimizer import make_optimizer
from steelrail.train.parallel import build_model, initialise, make_mesh
from steelrail.train.plan import keeps_whole
from steelrail.train.weights import read_weights

log = logger(__name__)


def build(run: Run, device: torch.device) -> TrainState:
    """Return the sharded model and its optimizer at step 0. The process group of all ranks must be there.

    The weights hold nothing yet (whatever was in memory): restore a checkpoint into them, or call ``first_weights``.
    """
    freeze_kernels(run.train.deterministic)
    train = run.train
    mesh = make_mesh(device.type, dist.get_world_size())
    model = build_model(train.model, mesh, device, train.precision, train.recompute, regather=not keeps_whole(run))
    waits = Waits(clock.monotonic, device)
    time_collectives(model, waits)
    return TrainState(model, make_optimizer(model, train.optimizer), mesh, waits)


def first_weights(run: Run, state: TrainState, beat: Callable[[], None]) -> None:
    """Fill the weights of a model that has no checkpoint: from ``train.init_from``, or from the seed.

    ``beat`` is called for each parameter. Raises ``InputError`` when the files do not fit the model.
    """
    if run.train.init_from is None:
        initialise(state.model, run.train.seed, beat)
    else:
        read_weights(state.model, Path(run.train.init_from), beat)


def train(context: TrainContext, state: TrainState) -> Outcome:
    """Train until done or told to stop; export the final weights when done. See ``train.loop.run_steps``."""
    with ExitStack() as stack:
        record = _recorder(context, stack) if context.rank == 0 else _no_record
        outcome = run_steps(context, state, Clock(clock.now, clock.monotonic, clock.sleep), record)
    if outcome is Outcome.DONE and context.export_folder is not None:
        context.beat(context.run.train.steps, "export")
        write_weights(context.run, state, context.export_folder, context.tokenizer, context.end_of_text_id)
    return outcome


def freeze_kernels(deterministic: bool) -> None:
    """Choose kernels for this process: always the same ones, to the last bit, when ``deterministic``."""
    if not deterministic:
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Every buffer is written before it is read; filling each one first would cost a pass over memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False


def versions(run: Run) -> dict[str, str]:
    """Return what computes and adds here: another version or device may round otherwise."""
    if run.shape.device == "cpu":
        return {"torch": torch.__version__}
    nccl = ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    return {"torch": torch.__version__, "nccl": nccl, "gpu": torch.cuda.get_device_name()}


def _recorder(context: TrainContext, stack: ExitStack) -> Record:
    """Return what writes a row of metrics: a JSON line, and TensorBoard's scalars beside it."""
    path = context.folder.metrics(context.attempt)
    stack.enter_context(on_results(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    file = stack.enter_context(path.open("a", encoding="utf-8"))
    scalars = _scalars(context.folder.root / "tensorboard", context.start_step + 1, stack)

    def record(row: MetricsRow) -> None:
        if row.skipped:
            log.warning("step %d left out: loss %g, gradient norm %g", row.step, row.loss, row.grad_norm)
        with on_results(path):
            _write_line(file, row)
            scalars(row)

    return record


def _write_line(file: TextIO, row: MetricsRow) -> None:
    file.write(json.dumps(asdict(row), separators=(",", ":")) + "\n")
    file.flush()


def _scalars(folder: Path, first_step: int, stack: ExitStack) -> Callable[[MetricsRow], None]:
    from torch.utils.tensorboard import SummaryWriter  # seconds to import, and one rank alone needs it

    # What an earlier attempt drew of steps that are made again now is taken back.
    writer = SummaryWriter(str(folder), purge_step=first_step)
    stack.callback(writer.close)

    def write(row: MetricsRow) -> None:
        fields = {"train/loss": row.loss, "train/grad_norm": row.grad_norm, "train/learning_rate": row.learning_rate}
        if row.heldout_loss is not None:
            fields["heldout/loss"] = row.heldout_loss
        for name, value in {**fields, "speed/tokens_per_s": row.tokens_per_s}.items():
            writer.add_scalar(name, value, row.step, walltime=row.time)

    return write


def _no_record(row: MetricsRow) -> None:
    """Only rank 0 keeps metrics."""
