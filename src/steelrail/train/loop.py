"""The training loop of one rank: a function over a small state record.

Between two events all time belongs to one category; a ``step`` event splits its own stretch, from ``start`` to its
time. Held-out losses count as productive, with their communication.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from steelrail.config.drills import drill_at, starting_after
from steelrail.config.schema import Category, Drill
from steelrail.errors import TrainError, must
from steelrail.train.compute import Wish, accumulate, agree, heldout_loss, sum_loss_and_norm
from steelrail.train.context import Clock, LocalBatch, MetricsRow, Outcome, TrainContext, TrainState
from steelrail.train.drills import perform, spoil
from steelrail.train.history import Fault, History, fault_of, keep_loss
from steelrail.train.optimizer import clear_gradients, gradients, update
from steelrail.train.plan import keeps_whole
from steelrail.train.schedule import learning_rate

Record = Callable[[MetricsRow], None]


@dataclass(frozen=True)
class Step:
    """One finished step: its row of metrics and what any rank asked for during it."""

    row: MetricsRow
    wish: Wish


@dataclass(frozen=True)
class Computed:
    """What a step came to, the same on every rank. With a ``fault`` the step is bad.

    ``skipped``: for that, or by an earlier attempt's decision, its update is left out: no state has changed.
    """

    loss: float
    norm: float
    digest: int
    wish: Wish
    fault: Fault | None
    skipped: bool


def run_steps(context: TrainContext, state: TrainState, clock: Clock, record: Record) -> Outcome:
    """Train from ``start_step`` to the last step, or until any rank is told to stop; save on the way and at the end.

    ``record`` is given each row of metrics (on rank 0). A bad step (not finite, or a spike) may end it too: so that the
    next attempt goes back before it, or with ``TrainError`` where it may be neither left out nor rolled back.
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
        if step is None:
            return Outcome.ROLLED_BACK
        heldout = _measure_heldout(context, state, number) if _heldout_due(context, number) else None
        if context.rank == 0:
            record(_with_heldout(step.row, heldout))
        if _save_due(context, number, step.wish):
            _save(context, clock, number, saved, heldout)
            saved = number
        if step.wish.stop and number < context.run.train.steps:
            return Outcome.SAVED_ON_SIGNAL
        gc.collect()
    return Outcome.DONE


def _step(
    context: TrainContext, state: TrainState, clock: Clock, batches: Iterator[LocalBatch], number: int
) -> Step | None:
    """Make one optimizer step and write its event; returns none when the next attempt is to go back before it."""
    context.beat(number - 1, "step")
    start, started = clock.now(), clock.monotonic()
    batch = _next_batch(context, clock, batches, number)
    data_wait = clock.monotonic() - started
    done = _compute(context, state, clock, batch, number)
    if done.fault is not None:
        _answer(context, state.history, number, done)
    if done.skipped:
        state.history.skipped.append(number)
    _write_step(context, state, clock, number, done, start, data_wait)
    if done.fault is not None and context.run.train.bad_step.policy == "roll_back":
        return None
    return Step(_row(context, clock, number, done, clock.monotonic() - started), done.wish)


def _write_step(
    context: TrainContext, state: TrainState, clock: Clock, number: int, done: Computed, start: float, data_wait: float
) -> None:
    """Write the step's event. Compute of a step that is left out advanced no model: its time is lost."""
    seconds, marks = {"communication": state.waits.take(), "data_wait": data_wait}, {}
    if done.skipped:
        seconds["lost"] = max(0.0, clock.now() - start - sum(seconds.values()))
        marks = {"skipped": True}
    tokens = _global_tokens(context)
    context.events.write("step", step=number, start=start, seconds=seconds, tokens=tokens, **marks)


def _row(context: TrainContext, clock: Clock, number: int, done: Computed, seconds: float) -> MetricsRow:
    tokens = _global_tokens(context)
    return MetricsRow(
        step=number,
        attempt=context.attempt,
        loss=done.loss,
        tokens=number * tokens,
        token_digest=done.digest,
        grad_norm=done.norm,
        learning_rate=learning_rate(context.run.train.optimizer, context.run.train.steps, number),
        step_seconds=seconds,
        tokens_per_s=tokens / seconds,
        time=clock.now(),
        heldout_loss=None,
        skipped=done.skipped,
    )


def _compute(context: TrainContext, state: TrainState, clock: Clock, batch: LocalBatch, number: int) -> Computed:
    """Compute one step and make its update, unless the step is bad. Loss and norm are sums over all ranks by then.

    A step that an earlier attempt decided to leave out is not judged: its loss is for the reader of the curve.
    """
    train, tokens = context.run.train, _global_tokens(context)
    _drill(context, clock, "productive", number)
    loss = accumulate(state, batch.tokens, tokens, keeps_whole(context.run))
    spoil(_drills(context, "productive", number), (loss, *gradients(state.optimizer)))
    with state.waits.around():
        _drill(context, clock, "communication", number)
        total, norm = sum_loss_and_norm(state, loss)
    mean, size = float(total.item()) / tokens, float(norm.item())
    planned = number in context.leave_out
    fault = None if planned else fault_of(state.history, train.bad_step, mean, size)
    if not planned and fault is None:
        context.before_change()
        update(state.optimizer, learning_rate(train.optimizer, train.steps, number), norm)
        keep_loss(state.history, train.bad_step, mean)
    clear_gradients(state.optimizer)
    wish = Wish(context.stop_requested(), context.save_requested())
    with state.waits.around():
        digest, wish = agree(context.device, batch.digest, wish, fault is not None)
    return Computed(mean, size, digest, wish, fault, skipped=planned or fault is not None)


def _next_batch(context: TrainContext, clock: Clock, batches: Iterator[LocalBatch], number: int) -> LocalBatch:
    _drill(context, clock, "data_wait", number)
    batch = next(batches, None)
    if batch is None:
        where = f"step {number}, rank {context.rank}"
        raise TrainError(
            must("data", f"enough for {context.run.train.steps} steps", "at its end", where, "report this fault")
        )
    return batch


def _save(context: TrainContext, clock: Clock, number: int, since: int, heldout: float | None) -> None:
    context.beat(number, "checkpoint")
    context.events.enter("checkpoint")
    _drill(context, clock, "checkpoint", number, since)
    context.save(number, heldout)
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


def _answer(context: TrainContext, history: History, number: int, done: Computed) -> None:
    """Note a bad step with its place in the data, and do what the run file says, or stop there."""
    assert done.fault is not None
    settings, fault, where = context.run.train.bad_step, done.fault, _place(context, number)
    said = f"{fault.what} must be {fault.wanted}, is {fault.found:g} ({where}; token digest {done.digest})"
    if context.rank == 0:
        context.events.write("note", text=f"bad step, {settings.policy}: {said}")
    do = "lower the learning rate, or look at that data"
    if settings.policy == "stop":
        raise TrainError(must(fault.what, fault.wanted, f"{fault.found:g}", where, do))
    rolls = settings.policy == "roll_back"
    count = 1 + (context.rollbacks if rolls else len(history.skipped))
    if count > settings.limit:
        found, what = f"{count} ({fault.what} {fault.found:g})", "roll backs" if rolls else "steps left out"
        do = f"{do}, or raise train.bad_step.limit"
        raise TrainError(must(what, f"at most {settings.limit}", found, where, do))
    if rolls:
        context.beat(number - 1, "roll back")
        context.roll_back(number, said)


def _place(context: TrainContext, number: int) -> str:
    """Name the batch of a step: places in the data's order, from which the order's seed gives the sequences."""
    batch, epoch = context.run.train.global_batch_sequences, context.epoch_sequences
    first, last = (number - 1) * batch, number * batch - 1
    where = f"step {number}, sequences {first} to {last} of the data's order"
    return where if epoch is None else f"{where}, epochs {first // epoch} to {last // epoch}"


def _with_heldout(row: MetricsRow, heldout: float | None) -> MetricsRow:
    return MetricsRow(**{**row.__dict__, "heldout_loss": heldout})


def _global_tokens(context: TrainContext) -> int:
    return context.run.train.global_batch_sequences * context.run.train.sequence_tokens


def _drill(context: TrainContext, clock: Clock, where: Category, step: int, since: int | None = None) -> None:
    perform(_drills(context, where, step, since), clock.now, clock.sleep, context.events)


def _drills(context: TrainContext, where: Category, step: int, since: int | None = None) -> tuple[Drill, ...]:
    drills = starting_after(context.run.drills, context.start_step)
    return drill_at(drills, where, rank=context.rank, attempt=context.attempt, step=step, since=since)


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
