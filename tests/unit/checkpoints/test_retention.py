from __future__ import annotations

from steelrail.checkpoints.layout import StepId
from steelrail.checkpoints.lineage import Resumed
from steelrail.checkpoints.retention import local_removals, plan


def removed(
    folders: dict[tuple[int, int], bool],
    *,
    damaged: tuple[tuple[int, int], ...] = (),
    resumed: tuple[Resumed, ...] = (),
    keep_last: int = 2,
    epoch: int = 2,
) -> list[tuple[int, int]]:
    held = {StepId(*which): manifest for which, manifest in folders.items()}
    provable = [which for which, manifest in held.items() if manifest and (which.step, which.epoch) not in damaged]
    return [(one.which.step, one.which.epoch) for one in plan(held, provable, resumed, epoch, keep_last)]


def test_the_newest_are_kept() -> None:
    assert removed({(1, 1): True, (2, 1): True, (3, 2): True, (4, 2): True}) == [(1, 1), (2, 1)]


def test_damaged_ones_do_not_count_among_the_kept() -> None:
    folders = {(1, 1): True, (2, 1): True, (3, 2): True, (4, 2): True}
    assert removed(folders, damaged=((3, 2),)) == [(1, 1)]


def test_nothing_goes_while_nothing_is_provable() -> None:
    folders = {(1, 1): True, (2, 1): True, (3, 1): False}
    assert removed(folders, damaged=((1, 1), (2, 1)), keep_last=1) == []


def test_last_provable_one_stays_behind_newer_damaged_ones() -> None:
    folders = {(1, 1): True, (2, 1): True, (3, 2): True}
    assert removed(folders, damaged=((2, 1), (3, 2)), keep_last=1) == []


def test_leftovers_of_dead_attempts_go_and_own_newer_ones_stay() -> None:
    folders = {(3, 1): False, (9, 1): False, (4, 2): True, (3, 2): False, (5, 2): False}
    assert removed(folders) == [(3, 1), (3, 2), (9, 1)]


def test_replaced_ones_go_though_their_step_is_higher() -> None:
    folders = {(9, 1): True, (4, 2): True, (3, 1): True}
    assert removed(folders, resumed=(Resumed(2, 3, 1),)) == [(9, 1)]


def test_what_a_newer_attempt_made_is_never_touched() -> None:
    folders = {(1, 3): True, (2, 3): False, (1, 2): True, (2, 2): True, (3, 2): True}
    assert removed(folders) == [(1, 2)]


def test_nvme_keeps_the_two_newest_commits_and_what_is_waited_for() -> None:
    there = {StepId(step, 1): True for step in range(1, 6)}
    assert local_removals(there, {StepId(2, 1)}) == [StepId(1, 1), StepId(3, 1)]


def test_nvme_counts_by_attempt_before_step() -> None:
    there = {StepId(9, 1): True, StepId(4, 2): True, StepId(5, 2): True, StepId(3, 1): False}
    assert local_removals(there, set()) == [StepId(9, 1), StepId(3, 1)]


def test_nvme_keeps_the_save_that_is_being_written() -> None:
    there = {StepId(4, 2): True, StepId(5, 2): False, StepId(3, 2): False}
    assert local_removals(there, set()) == [StepId(3, 2)]


def test_nvme_without_a_commit_is_left_alone() -> None:
    assert local_removals({StepId(4, 2): False}, set()) == []
