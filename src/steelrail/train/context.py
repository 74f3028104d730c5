"""What the loop is given, and what it says: records only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.device_mesh import DeviceMesh

from steelrail.artifacts.events import EventWriter
from steelrail.artifacts.trainer import RunFolder
from steelrail.config.schema import Run
from steelrail.train.communication import Waits
from steelrail.train.history import History
from steelrail.train.model import Llama
from steelrail.train.optimizer import AdamW


class Outcome(Enum):
    """How the loop ended, when it did not raise."""

    DONE = "done"
    SAVED_ON_SIGNAL = "saved on signal"
    ROLLED_BACK = "rolled back"


class LocalBatch(Protocol):
    """This rank's slice of a global batch. Any record with these two fields will do."""

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Sequences (micro-batches, sequences, sequence tokens + 1): inputs and, one further, targets."""

    @property
    def digest(self) -> int:
        """Sum of the digests of these sequences modulo 2^63 (``token_digest`` is the sum over ranks)."""


class HeldoutBatch(Protocol):
    """A micro-batch of held-out sequences of this rank."""

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Sequences (sequences, sequence tokens + 1)."""

    @property
    def weights(self) -> NDArray[np.float32]:
        """1 for each sequence that counts, 0 for padding (sequences)."""


@dataclass(frozen=True)
class Clock:
    """Time, as the loop sees it: Unix seconds, seconds that never go back, and a way to wait."""

    now: Callable[[], float]
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]


@dataclass(frozen=True)
class TrainContext:
    """Everything around the mathematics of one rank in one attempt.

    - ``start_step`` finished updates that the restored state has seen; ``batches(start_step)`` yields the batches after
    - ``heldout`` this rank's held-out batches, equally many on every rank (none: no held-out loss)
    - ``save(step, heldout_loss)`` makes a checkpoint of the live state; the loss is that of this very step (none: it
      was not measured at it)
    - ``before_change()`` comes before every update: only after it may the state change that a save is made of
    - ``beat(step, doing)`` keeps the heartbeat; ``stop_requested`` and ``save_requested`` say what this rank was told
    - ``epoch_sequences`` sequences in one epoch of the data's order (none: not said where a bad batch is named)
    - ``leave_out`` steps whose updates an attempt before this one decided to leave out; ``rollbacks`` how often one did
    - ``roll_back(step, why)`` has the next attempts go back before a bad step; it is durable when it returns
    - ``export_folder`` where final weights go; ``tokenizer`` a Hugging Face tokenizer.json to put beside them
    """

    run: Run
    key: str
    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    attempt: int
    start_step: int
    batches: Callable[[int], Iterator[LocalBatch]]
    heldout: Sequence[HeldoutBatch]
    save: Callable[[int, float | None], None]
    before_change: Callable[[], None]
    roll_back: Callable[[int, str], None]
    beat: Callable[[int, str], None]
    stop_requested: Callable[[], bool]
    save_requested: Callable[[], bool]
    events: EventWriter
    folder: RunFolder
    export_folder: Path | None
    tokenizer: Path | None
    end_of_text_id: int | None
    epoch_sequences: int | None = None
    leave_out: frozenset[int] = frozenset()
    rollbacks: int = 0


@dataclass(frozen=True)
class TrainState:
    """What training changes: sharded model, optimizer, history; beside them the mesh and the timing of its waits."""

    model: Llama
    optimizer: AdamW
    mesh: DeviceMesh
    waits: Waits
    history: History = field(default_factory=History)


@dataclass(frozen=True)
class MetricsRow:
    """One step of one attempt. ``loss`` is nats per token of the global batch, ``tokens`` all tokens seen so far.

    ``skipped``: the step's update was left out: it was bad, or a roll back decided so.
    """

    step: int
    attempt: int
    loss: float
    tokens: int
    token_digest: int
    grad_norm: float
    learning_rate: float
    step_seconds: float
    tokens_per_s: float
    time: float
    heldout_loss: float | None
    skipped: bool = False
