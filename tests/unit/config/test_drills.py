import pytest
from pydantic import ValidationError

from steelrail.config.drills import drill_at, starting_after
from steelrail.config.schema import Drill

AT_FIVE = Drill(kind="wait", where="productive", at_step=5, rank=1, attempt=2)


def found(drill: Drill, where: str = "productive", rank: int = 1, attempt: int = 2, **moment: int) -> bool:
    return drill_at((drill,), where, rank=rank, attempt=attempt, **moment) == (drill,)  # type: ignore[arg-type]


def test_a_drill_comes_at_its_category_rank_attempt_and_step_alone() -> None:
    assert found(AT_FIVE, step=5)
    assert not found(AT_FIVE, step=4)
    assert not found(AT_FIVE, step=6)
    assert not found(AT_FIVE, step=5, where="data_wait")
    assert not found(AT_FIVE, step=5, rank=0)
    assert not found(AT_FIVE, step=5, attempt=1)


def test_rank_minus_one_and_attempt_zero_mean_all() -> None:
    everywhere = AT_FIVE.model_copy(update={"rank": -1, "attempt": 0})
    assert all(found(everywhere, rank=rank, attempt=attempt, step=5) for rank in (0, 7) for attempt in (1, 9))


@pytest.mark.parametrize(("since", "step", "comes"), [(0, 4, False), (4, 8, True), (5, 8, False), (0, 5, True)])
def test_a_rare_moment_stands_for_all_steps_since_the_one_before(since: int, step: int, comes: bool) -> None:
    assert found(AT_FIVE, step=step, since=since) is comes


def test_before_the_loop_a_drill_needs_no_step() -> None:
    staging = Drill(kind="exit", where="staging")
    assert drill_at((staging, AT_FIVE), "staging", rank=0, attempt=1) == (staging,)


def test_a_drill_without_a_step_comes_at_the_first_step_of_a_loop() -> None:
    first, other = starting_after((Drill(kind="raise"), AT_FIVE), 40)
    assert (first.at_step, other) == (41, AT_FIVE)


def test_a_loss_that_is_made_not_a_number_belongs_to_a_step() -> None:
    assert Drill(kind="nan", at_step=3).where == "productive"
    with pytest.raises(ValidationError, match="where must be productive for a nan drill, is staging"):
        Drill(kind="nan", where="staging")
