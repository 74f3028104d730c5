"""What follows an ending: restart inside the allocation, requeue, or stop. Pure; one table, one owner of restarts.

Progress means that the newest durable checkpoint advanced. Failures of ours without progress are bounded: so many
restarts inside the allocation, then one requeue without the culprit, then the run stops with the reason. What Slurm
does to us (preemption, a lost node, a requeue by hand) is answered by going on, as often as it happens. So is a bad
step that was rolled back: ``train.bad_step.limit`` bounds those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from steelrail.artifacts.train import Ending
from steelrail.artifacts.trainer import EXIT_FULL
from steelrail.config.schema import Launch
from steelrail.errors import (
    BusyError,
    CheckpointError,
    ConfigError,
    FabricError,
    FullError,
    InputError,
    NodeError,
    StoreError,
)


class Action(StrEnum):
    """What to do next."""

    FINISH = "finish"
    RESTART = "restart"
    REQUEUE = "requeue"
    STOP = "stop"


@dataclass(frozen=True)
class Past:
    """One attempt that ended. ``exit_code`` is that of the rank's error; ``mark`` and ``step`` tell equal errors."""

    ending: Ending
    progressed: bool
    exit_code: int | None = None
    culprit: str | None = None
    mark: str | None = None
    step: int | None = None
    host_silent: bool = False


@dataclass(frozen=True)
class Decision:
    """What to do, why, which host to leave out (only ever on evidence), and how long to wait before.

    ``exclude`` of a restart is a node whose place a spare takes.
    """

    action: Action
    reason: str
    exclude: str | None = None
    pause_seconds: float = 0.0


# The same again cannot help: wrong settings or input, a store that refuses, nothing that can be resumed from,
# another job that holds a newer fence (two that restart would fence each other off for ever), or a full file system.
_HOPELESS = {
    kind.exit_code: kind.__name__ for kind in (ConfigError, InputError, StoreError, CheckpointError, BusyError)
} | {EXIT_FULL: FullError.__name__}
# The host or its links are at fault: other nodes may do.
_OF_THE_HOST = {NodeError.exit_code, FabricError.exit_code}
_OURS = (Ending.JOB_ERROR, Ending.STALLED, Ending.UNKNOWN)
_PAUSE_SECONDS = 5.0
# Nothing follows these until somebody runs train again.
ENDED_ON_PURPOSE = (Ending.STOPPED, Ending.BUDGET, Ending.CANCELLED)


def decide(past: Sequence[Past], limits: Launch, room: bool = True, spares: int = -1) -> Decision:
    """Return what follows the last of ``past`` (attempts since this job was submitted, oldest first; at least one).

    ``room``: the segment has time left for another attempt. ``spares``: nodes held that are not lost, beyond those that
    train (-1: one is missing).
    """
    last = past[-1]
    if last.ending is Ending.DONE:
        return Decision(Action.FINISH, "done")
    if last.ending in ENDED_ON_PURPOSE:
        return Decision(Action.STOP, f"the run was {last.ending.value}")
    if last.ending is Ending.WALLTIME:
        return _after_walltime(past, limits, room)
    if last.ending is Ending.ROLLED_BACK:
        return Decision(Action.RESTART if room else Action.REQUEUE, "rolled_back: going on from before the bad step")
    if last.ending is Ending.NODE_FAILURE and spares >= 0 and room:
        return Decision(Action.RESTART, "node_failure: a spare node takes the lost one's place", last.culprit)
    if last.ending not in _OURS:
        return Decision(Action.REQUEUE, f"{last.ending.value}: the job goes on when Slurm has nodes")
    return _after_error(past, limits, room, spares)


def _after_walltime(past: Sequence[Past], limits: Launch, room: bool) -> Decision:
    wasted = _run_length(past, lambda one: one.ending is Ending.WALLTIME and not one.progressed)
    if wasted > limits.requeues_without_progress:
        return Decision(Action.STOP, f"{wasted} segments ended at the time limit without a newer durable checkpoint")
    # A save asked for with time to spare: going on here costs no place in the queue.
    return Decision(Action.RESTART if room else Action.REQUEUE, "walltime: saved, going on")


def _after_error(past: Sequence[Past], limits: Launch, room: bool, spares: int) -> Decision:
    last = past[-1]
    if last.exit_code in _HOPELESS and last.ending is Ending.JOB_ERROR:
        return Decision(Action.STOP, f"{_HOPELESS[last.exit_code]}: a restart would meet it again")
    same = _alike(past)
    if last.ending is Ending.JOB_ERROR and same >= limits.same_error_limit:
        at = "" if last.step is None else f" at step {last.step}"
        return Decision(Action.STOP, f"the same error came {same} times{at}")
    failures = _failures(past)
    if failures > limits.restarts_in_allocation + limits.requeues_without_progress:
        return Decision(Action.STOP, f"{failures} attempts failed without a newer durable checkpoint")
    elsewhere = last.exit_code in _OF_THE_HOST or failures > limits.restarts_in_allocation
    if spares > 0 and room and last.culprit and (elsewhere or last.host_silent):
        reason = f"failure {failures} without progress: a spare node takes the culprit's place"
        return Decision(Action.RESTART, reason, last.culprit)
    if elsewhere or not room:
        return Decision(
            Action.REQUEUE, f"failure {failures} without progress: requeue without the culprit", last.culprit
        )
    reason = f"failure {failures} without progress: restart inside the allocation"
    # The first restart is for speed. What fails again may need a moment: a slurmd that still clears an old step away.
    return Decision(Action.RESTART, reason, pause_seconds=_PAUSE_SECONDS * (failures - 1))


def _failures(past: Sequence[Past]) -> int:
    """Failures of ours since the newest durable checkpoint advanced; an attempt that advanced it and failed is one."""
    count = 0
    for one in reversed(past):
        count += one.ending in _OURS
        if one.progressed:
            break
    return count


def _alike(past: Sequence[Past]) -> int:
    """How often the last error came in a row: at one step, or without a step known and without progress between."""
    count, last = 0, past[-1]
    for one in reversed(past):
        if one.mark is None or (one.mark, one.step) != (last.mark, last.step):
            break
        count += 1
        if one.step is None and one.progressed:
            break
    return count


def _run_length(past: Sequence[Past], same: Callable[[Past], bool]) -> int:
    count = 0
    for one in reversed(past):
        if not same(one):
            break
        count += 1
    return count
