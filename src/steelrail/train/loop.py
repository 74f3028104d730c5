"""The training loop of one rank: a function over a small state record.

Between two events all time belongs to one category; a ``step`` event splits its own stretch, from ``start`` to its
time. Held-out losses count as productive, with their communication.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from steelrail.config.drills import drill_at, starting_after
from steelrail.config.schema import Category
from steelrail.errors import TrainError, must
from steelrail.train.compute import Wish, accumulate, agree, heldout_loss, sum_loss_and_norm
from steelrail.train.context import Clock, LocalBatch, MetricsRow, Outcome, TrainContext, TrainState
from steelrail.train.drills import perform
from steelrail.train.optimizer import clear_gradients, update
from steelrail.train.plan import keeps_whole
from steelrail.train.schedule import learning_rate

Record = Callable[[MetricsRow], None]


@dataclass(frozen=True)
class Step:
    """One finished step: its row of metrics and what any rank asked for during it."""

    row: MetricsRow
    wish: Wish


def run_steps(context: TrainContext, state: TrainState, clock: Clock, record: Record) -> Outcome:
    """Train from ``start_step`` to the last step, or until any rank is told to stop; save on the way and at the end.

    ``record`` is given each row of metrics (on rank 0). Raises ``TrainError`` when loss or gradient is not finite.
    """
    with _collector_off():
        context.events.enter("productive")
        if context.start_step == 0:
            _measure_heldout(context, state, 0)
        return _run(context, state, clock, record)


def _run(context: TrainContext, state: TrainState, clock: Clock, record: Record) -> Outcome:
    batches = context.batches(context.start_step)
    saved = context.start_step
    for number in range(context.start_step + 1, context.run.train.steps + 1):
        step = _step(context, state, clock, batches, number)
        heldout = _measure_heldout(context, state, number) if _heldout_due(context, number) else None
        if context.rank == 0:
            record(_with_heldout(step.row, heldout))
        if _save_due(context, number, step.wish):
            _save(context, clock, number, saved)
            saved = number
        if step.wish.stop and number < context.run.train.steps:
            return Outcome.SAVED_ON_SIGNAL
        gc.collect()
    return Outcome.DONE


def _step(context: TrainContext, state: TrainState, clock: Clock, batches: Iterator[LocalBatch], number: int) -> Step:
    """Make one optimizer step and write its event."""
    context.beat(number - 1, "step")
    start, started = clock.now(), clock.monotonic()
    batch = _next_batch(context, clock, batches, number)
    data_wait = clock.monotonic() - started
    loss, norm, digest, wish = _compute(context, state, clock, batch, number)
    _require_finite(context, number, loss, norm)
    seconds = {"communication": state.waits.take(), "data_wait": data_wait}
    tokens = _global_tokens(context)
    context.events.write("step", step=number, start=start, seconds=seconds, tokens=tokens)
    elapsed = clock.monotonic() - started
    rate = learning_rate(context.run.train.optimizer, context.run.train.steps, number)
    row = MetricsRow(
        step=number,
        attempt=context.attempt,
        loss=loss,
        tokens=number * tokens,
        token_digest=digest,
        grad_norm=norm,
        learning_rate=rate,
        step_seconds=elapsed,
        tokens_per_s=tokens / elapsed,
        time=clock.now(),
        heldout_loss=None,
    )
    return Step(row, wish)


def _compute(
    context: TrainContext, state: TrainState, clock: Clock, batch: LocalBatch, number: int
) -> tuple[float, float, int, Wish]:
    """Return mean loss, gradient norm, token digest and wish of one step; the weights have changed."""
    train, tokens = context.run.train, _global_tokens(context)
    _drill(context, clock, "productive", number)
    loss = accumulate(state, batch.tokens, tokens, keeps_whole(context.run))
    with state.waits.around():
        _drill(context, clock, "communication", number)
        total, norm = sum_loss_and_norm(state, loss)
    update(state.optimizer, learning_rate(train.optimizer, train.steps, number), norm)
    clear_gradients(state.optimizer)
    with state.waits.around():
        digest, wish = agree(context.device, batch.digest, Wish(context.stop_requested(), context.save_requested()))
    return float(total.item()) / tokens, float(norm.item()), digest, wish


def _next_batch(context: TrainContext, clock: Clock, batches: Iterator[LocalBatch], number: int) -> LocalBatch:
    _drill(context, clock, "data_wait", number)
    batch = next(batches, None)
    if batch is None:
        where = f"step {number}, rank {context.rank}"
        raise TrainError(
            must("data", f"enough for {context.run.train.steps} steps", "at its end", where, "report this fault")
        )
    return batch


def _save(context: TrainContext, clock: Clock, number: int, since: int) -> None:
    context.beat(number, "checkpoint")
    context.events.enter("checkpoint")
    _drill(context, clock, "checkpoint", number, since)
    context.save(number)
    context.events.enter("productive")


def _measure_heldout(context: TrainContext, state: TrainState, number: int) -> float | None:
    if not context.heldout:
        return None
    context.beat(number, "heldout")
    loss = heldout_loss(state, context.heldout)
    state.waits.take()  # no step's stretch: the next one must not be charged with it
    context.events.write("heldout", step=number, loss=loss)
    return loss


def _heldout_due(context: TrainContext, number: int) -> bool:
    return number % context.run.train.heldout_every_steps == 0 or number == context.run.train.steps


def _save_due(context: TrainContext, number: int, wish: Wish) -> bool:
    due = number % context.run.checkpoints.every_steps == 0 or number == context.run.train.steps
    return due or wish.stop or wish.save


def _require_finite(context: TrainContext, number: int, loss: float, norm: float) -> None:
    for what, value in (("loss", loss), ("gradient norm", norm)):
        if not math.isfinite(value):
            batch = context.run.train.global_batch_sequences
            where = f"step {number}, sequences {(number - 1) * batch} to {number * batch - 1} of the data's order"
            raise TrainError(must(what, "finite", value, where, "lower the learning rate, or look at that data"))


def _with_heldout(row: MetricsRow, heldout: float | None) -> MetricsRow:
    return MetricsRow(**{**row.__dict__, "heldout_loss": heldout})


def _global_tokens(context: TrainContext) -> int:
    return context.run.train.global_batch_sequences * context.run.train.sequence_tokens


def _drill(context: TrainContext, clock: Clock, where: Category, step: int, since: int | None = None) -> None:
    drills = starting_after(context.run.drills, context.start_step)
    perform(drill_at(drills, where, rank=context.rank, attempt=context.attempt, step=step, since=since), clock.sleep)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Keep Python's collector from running in the middle of a step, on one rank at a time, while all others wait."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
