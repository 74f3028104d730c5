"""Which faults put in on purpose happen now. Pure: whoever asks also carries them out."""

from __future__ import annotations

from steelrail.config.schema import Category, Drill


def drill_at(
    drills: tuple[Drill, ...], where: Category, *, rank: int, attempt: int, step: int = 0, since: int | None = None
) -> tuple[Drill, ...]:
    """Return the drills of one moment: category ``where``, on this rank, in this attempt.

    ``step`` is the step at work (0 before the first). A moment that does not come at every step, such as a save, stands
    for all steps after ``since``, the step of the moment before it.
    """
    first = step if since is None else since + 1
    return tuple(
        drill
        for drill in drills
        if drill.where == where
        and drill.rank in (rank, -1)
        and drill.attempt in (attempt, 0)
        and first <= drill.at_step <= step
    )


def starting_after(drills: tuple[Drill, ...], start_step: int) -> tuple[Drill, ...]:
    """Return the drills for a loop that goes on after ``start_step``: those without a step come at its first."""
    return tuple(
        drill.model_copy(update={"at_step": start_step + 1}) if drill.at_step == 0 else drill for drill in drills
    )
