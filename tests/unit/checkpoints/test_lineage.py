from __future__ import annotations

import pytest

from steelrail.checkpoints.layout import StepId
from steelrail.checkpoints.lineage import Resumed, Rollback, is_void, left_out, newest_allowed


@pytest.mark.parametrize(
    ("saved", "resumed", "void"),
    [
        (StepId(150, 1), [Resumed(2, 100, 1)], True),  # a zombie's commit, or a save the next attempt did not have
        (StepId(150, 1), [Resumed(2, 150, 1)], False),  # its own resumption
        (StepId(100, 1), [Resumed(2, 150, 1)], False),  # an ancestor
        (StepId(150, 2), [Resumed(2, 100, 1)], False),  # made by the attempt that resumed from before it
        (StepId(150, 1), [Resumed(2, 0, 0)], True),  # a later attempt started from scratch
        (StepId(150, 1), [], False),
        (StepId(150, 1), [Resumed(1, 0, 0), Resumed(3, 150, 1), Resumed(4, 149, 1)], True),
        # Attempt 2 was overtaken before it wrote down its start: what attempt 3 stands on counts all the same.
        (StepId(150, 1), [Resumed(2, 100, 1), Resumed(3, 150, 1)], False),
        (StepId(120, 2), [Resumed(2, 100, 1), Resumed(3, 150, 1)], True),  # and what attempt 2 made of it does not
        (StepId(90, 1), [Resumed(2, 100, 1), Resumed(4, 120, 3)], False),  # attempt 3 took over from NVMe and was gone
        (StepId(110, 1), [Resumed(2, 100, 1), Resumed(4, 120, 3)], True),
    ],
)
def test_save_counts_unless_a_later_attempt_resumed_from_before_it(
    saved: StepId, resumed: list[Resumed], void: bool
) -> None:
    assert is_void(saved, resumed) is void


def rollback(epoch: int, at_most: int, step: int = 9, first: int = 9) -> Rollback:
    return Rollback(epoch, step, at_most, first, "loss is nan")


@pytest.mark.parametrize(
    ("rollbacks", "resumed", "at_most"),
    [
        ([], [Resumed(1, 0, 0)], None),
        ([rollback(1, 5)], [Resumed(1, 0, 0)], 5),
        ([rollback(3, 5)], [Resumed(1, 0, 0), Resumed(3, 8, 1)], 5),  # attempt 4 was gone before it wrote its start
        ([rollback(3, 5)], [Resumed(3, 8, 1), Resumed(4, 5, 1)], None),  # what it wrote voids the rest by itself
        ([rollback(3, 5), rollback(4, 2)], [Resumed(3, 8, 1), Resumed(4, 5, 1)], 2),
        ([rollback(2, 1), rollback(4, 7)], [Resumed(4, 5, 1)], 7),
        ([rollback(1, 0)], [Resumed(1, 0, 0)], 0),
    ],
)
def test_a_roll_back_binds_until_a_later_attempt_has_written_what_it_resumed_from(
    rollbacks: list[Rollback], resumed: list[Resumed], at_most: int | None
) -> None:
    assert newest_allowed(rollbacks, resumed) == at_most


@pytest.mark.parametrize("saved", [StepId(6, 1), StepId(8, 2), StepId(8, 1)])
def test_what_the_first_attempt_after_a_roll_back_wrote_voids_the_old_branch_for_good(saved: StepId) -> None:
    before = [Resumed(1, 0, 0), Resumed(2, 6, 1)]
    after = [*before, Resumed(3, 5, 1)]
    assert not is_void(StepId(6, 1), before)
    assert is_void(saved, after) and is_void(saved, [*after, Resumed(5, 7, 3)])
    assert not is_void(StepId(5, 1), [*after, Resumed(5, 7, 3)])


def test_all_that_was_ever_rolled_back_is_left_out() -> None:
    assert left_out([rollback(1, 5, step=9, first=8), rollback(3, 5, step=12, first=12)]) == {8, 9, 12}
    assert left_out([]) == frozenset()
