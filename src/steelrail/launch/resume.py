"""The state from which a rank trains: a checkpoint, or first weights where there never was one. An edge."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from steelrail import log
from steelrail.checkpoints.edge import Checkpoints, open_checkpoints
from steelrail.checkpoints.keep import HELDOUT_LOSS
from steelrail.checkpoints.lineage import Rollback
from steelrail.checkpoints.manifest import Plain
from steelrail.checkpoints.restore import RestoredFrom
from steelrail.clients.disk import node_root
from steelrail.clients.store import Store
from steelrail.launch import traces
from steelrail.launch.inputs import require_weights
from steelrail.train.context import TrainState
from steelrail.train.deterministic import choices, departure
from steelrail.train.edge import first_weights, versions
from steelrail.train.generators import seed_generators, set_generators
from steelrail.train.history import rolled_back_to, take_up
from steelrail.train.optimizer import load_state, state_for_checkpoint

if TYPE_CHECKING:
    from steelrail.launch.rank import Rank

_log = log.logger(__name__)


@dataclass(frozen=True)
class Resumed:
    """From where an attempt trains: its checkpoints, the step of the one it came from (0: none), what to leave out."""

    checkpoints: Checkpoints
    step: int
    rollbacks: tuple[Rollback, ...]


def resume(rank: Rank, state: TrainState, device: torch.device) -> Resumed:
    """Fill ``state`` and return from where the attempt trains.

    Initial weights are read, or drawn, only where the key never had a checkpoint, or none as old as a roll back wants;
    one that is lost is an error.
    """
    rank.enter("restore", "restore")
    checkpoints = _open(rank)
    # This run's own events outlive a bucket that was emptied, or that is another one now.
    known = max(0, traces.newest_durable(rank.folder, rank.attempt))
    rollbacks = checkpoints.rollbacks() if rank.run.train.bad_step.policy == "roll_back" else ()
    found = checkpoints.restore(state_for_checkpoint(state.optimizer), known, rollbacks)
    if found is None:
        _begin(rank, state, rollbacks)
    else:
        _go_on(rank, found)
        take_up(state.history, found.extra)
    start_step = found.step if found else 0
    load_state(state.optimizer, start_step - len(state.history.skipped))
    _take_up_generators(rank, found, device)
    return Resumed(checkpoints, start_step, rollbacks)


def roll_back(rank: Rank, checkpoints: Checkpoints, step: int, why: str) -> None:
    """Decide for all later attempts what a bad ``step`` means. All ranks call it; durable when it returns.

    The event comes first: should the attempt end between the two, nothing is decided, and the step is met again.
    """
    at_most, first = rolled_back_to(rank.run.train.bad_step, step)
    if rank.place.rank == 0:
        rank.events.write("rolled_back", step=step, at_most=at_most, first=first, why=why)
        said = "step %d is rolled back: the next attempt resumes from step %d or before and leaves out %d to %d: %s"
        _log.warning(said, step, at_most, first, step, why)
    checkpoints.roll_back(step, at_most, first, why)


def said_of_a_save(rank: Rank, heldout_loss: float | None) -> dict[str, Plain]:
    """Return what a checkpoint of this attempt says beside its tensors.

    The attempt, what decided its bits, and the held-out loss of its step where that was measured and is a number.
    """
    said: dict[str, Plain] = {"attempt": rank.attempt, **choices(rank.run, os.environ, versions(rank.run))}
    if heldout_loss is not None and math.isfinite(heldout_loss):
        said[HELDOUT_LOSS] = heldout_loss
    return said


def _open(rank: Rank) -> Checkpoints:
    return open_checkpoints(
        Store.open(rank.run.store),
        rank.run.name,
        rank.key,
        rank.epoch,
        node_root(rank.run),
        rank.place,
        rank.run.checkpoints,
        rank.events.write,
        beat=lambda: rank.pulse.beat(rank.pulse.step, rank.pulse.doing),
        bad_step=rank.run.train.bad_step,
    )


def _begin(rank: Rank, state: TrainState, rollbacks: Sequence[Rollback]) -> None:
    if rollbacks and rank.place.rank == 0:
        said = f"rolled back to the very start: the store never had a checkpoint up to step {rollbacks[-1].at_most}"
        _log.warning("%s", said)
        rank.events.write("note", text=said)
    rank.events.enter("startup")
    if rank.place.rank == 0:
        require_weights(rank.run, rank.folder)
    first_weights(rank.run, state, lambda: rank.pulse.beat(None, "first weights"))
    if rank.place.rank == 0:
        _log.info("training begins from %s", rank.run.train.init_from or f"random weights, seed {rank.run.train.seed}")


def _take_up_generators(rank: Rank, found: RestoredFrom | None, device: torch.device) -> None:
    """Have random numbers go on as saved. Where there is nothing to go on from they begin anew, and that is said."""
    if found is not None and found.rank_state is not None:
        set_generators(found.rank_state, device)
        return
    place = rank.place
    seed_generators(rank.run.train.seed, place.rank, place.world_size, found.step if found else 0)
    if found is not None and place.rank == 0:
        other = found.world_size != place.world_size
        why = f"is of {found.world_size} ranks, not {place.world_size}" if other else "holds no state of them"
        said = f"random generators are seeded anew: the checkpoint of step {found.step} {why}"
        _log.warning("%s", said)
        rank.events.write("note", text=said)


def _go_on(rank: Rank, found: RestoredFrom) -> None:
    """Say from where training goes on, and where its bits depart. Raises ``ConfigError``: see ``departure``."""
    now = choices(rank.run, os.environ, versions(rank.run))
    said = departure(rank.run, found.extra, now, found.step) if now else None
    if rank.place.rank != 0:
        return
    _log.info("training goes on from step %d (%s)", found.step, found.where)
    if said is not None:
        _log.warning("%s", said)
        rank.events.write("note", text=said)
