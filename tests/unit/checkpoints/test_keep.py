from __future__ import annotations

from collections.abc import Mapping

import pytest

from steelrail.checkpoints.keep import Held, Verdict, heldout_loss_of, judge, why_kept
from steelrail.checkpoints.layout import MANIFEST, StepId
from steelrail.checkpoints.lineage import Resumed
from steelrail.config.schema import BadStep, Checkpoints

Which = tuple[int, int]


def judged(
    folders: Mapping[Which, bool],
    *,
    damaged: tuple[Which, ...] = (),
    losses: Mapping[Which, float] | None = None,
    changed: Mapping[Which, float] | None = None,
    resumed: tuple[Resumed, ...] = (),
    epoch: int = 2,
    abandoned_before: float = 0.0,
    back_steps: int = 0,
    roll_backs: int = 1,
    **rules: int,
) -> tuple[Verdict, ...]:
    held = [
        Held(
            StepId(*which),
            (MANIFEST,) if manifest else ("__0_0.distcp",),
            1,
            None if manifest and which not in damaged else "a file is missing",
            (losses or {}).get(which),
            changed=(changed or {}).get(which),
        )
        for which, manifest in folders.items()
    ]
    kept_by = Checkpoints(**{"keep_last": 2, **rules})
    policy = "roll_back" if back_steps else "stop"
    bad_step = BadStep(policy=policy, back_steps=back_steps, limit=roll_backs)
    return judge(held, resumed, epoch, kept_by, abandoned_before, bad_step)


def gone(verdicts: tuple[Verdict, ...]) -> list[Which]:
    return sorted((one.held.which.step, one.held.which.epoch) for one in verdicts if not one.keeps)


def said(verdicts: tuple[Verdict, ...]) -> dict[Which, str]:
    return {(one.held.which.step, one.held.which.epoch): one.why for one in verdicts}


FOUR = {(1, 1): True, (2, 1): True, (3, 2): True, (4, 2): True}
SIX = {(step, 1): True for step in range(1, 7)}


def test_the_newest_are_kept() -> None:
    verdicts = judged(FOUR)
    assert gone(verdicts) == [(1, 1), (2, 1)]
    assert said(verdicts)[4, 2] == "newest 2"
    assert said(verdicts)[1, 1] == "older than the newest 2"


def test_every_folder_is_judged_newest_first() -> None:
    verdicts = judged({**FOUR, (5, 2): False})
    assert [one.held.which.step for one in verdicts] == [5, 4, 3, 2, 1]


def test_the_first_at_or_after_each_multiple_is_kept() -> None:
    saved = {(step, 1): True for step in (25, 50, 75, 130, 150, 175, 200, 225, 250)}
    verdicts = judged(saved, keep_every_steps=100)
    assert gone(verdicts) == [(25, 1), (50, 1), (75, 1), (150, 1), (175, 1)]
    assert said(verdicts)[130, 1] == "first of 100 steps"


def test_what_is_kept_for_its_step_stays_as_training_goes_on() -> None:
    kept: dict[Which, bool] = {}
    for step in range(7, 400, 7):
        kept[step, 1] = True
        for which in gone(judged(kept, keep_every_steps=100)):
            del kept[which]
    assert [step for step, _ in kept] == [105, 203, 301, 392, 399]


def test_a_damaged_one_is_not_the_first_of_its_steps() -> None:
    verdicts = judged(SIX, damaged=((2, 1),), keep_every_steps=2, keep_last=1)
    assert gone(verdicts) == [(1, 1), (2, 1), (5, 1)]
    assert said(verdicts)[2, 1] == "cannot be proved, and newer ones can"
    assert said(verdicts)[3, 1] == "first of 2 steps"


def test_the_best_by_heldout_loss_are_kept() -> None:
    verdicts = judged(SIX, losses={(1, 1): 3.0, (2, 1): 1.5, (3, 1): 2.0, (4, 1): 2.5}, keep_best=2, keep_last=1)
    assert gone(verdicts) == [(1, 1), (4, 1), (5, 1)]
    assert said(verdicts)[2, 1] == "best 2 by held-out loss (1.5000)"


def test_of_equal_losses_the_newest_counts() -> None:
    assert gone(judged(SIX, losses={(2, 1): 1.0, (3, 1): 1.0}, keep_best=1, keep_last=3)) == [(1, 1), (2, 1)]


def test_a_loss_that_is_no_number_is_never_the_best() -> None:
    assert gone(judged(SIX, losses={(1, 1): 9.0, (2, 1): float("nan")}, keep_best=1, keep_last=4)) == [(2, 1)]


def test_without_a_measured_loss_none_is_the_best() -> None:
    assert gone(judged(FOUR, keep_best=3)) == [(1, 1), (2, 1)]


def test_one_that_is_kept_twice_says_both() -> None:
    assert why_kept({StepId(4, 1): 1.0}, Checkpoints(keep_last=1, keep_every_steps=2, keep_best=1)) == {
        StepId(4, 1): "newest 1, first of 2 steps, best 1 by held-out loss (1.0000)"
    }


def test_a_step_taken_up_by_a_later_attempt_is_one_checkpoint_among_the_best() -> None:
    folders = {(1, 1): True, (2, 1): True, (2, 2): True, (5, 2): True}
    losses = {(1, 1): 2.0, (2, 1): 1.0, (2, 2): 1.0}
    assert gone(judged(folders, losses=losses, keep_best=2, keep_last=1)) == [(2, 1)]


def test_replaced_ones_are_neither_best_nor_first_nor_newest() -> None:
    folders = {(9, 1): True, (4, 2): True, (3, 1): True}
    losses = {(9, 1): 0.1, (3, 1): 5.0}
    resumed = (Resumed(2, 3, 1),)
    verdicts = judged(folders, losses=losses, resumed=resumed, keep_best=1, keep_every_steps=9, keep_last=1)
    assert gone(verdicts) == [(9, 1)]
    assert said(verdicts)[9, 1] == "replaced by a later attempt"
    assert [one.held.which.step for one in verdicts if one.void] == [9]


def test_damaged_ones_do_not_count_among_the_newest() -> None:
    verdicts = judged(FOUR, damaged=((3, 2),))
    assert gone(verdicts) == [(1, 1)]
    assert said(verdicts)[3, 2] == "cannot be proved, but is newer than the last that is kept"


def test_nothing_goes_while_nothing_can_be_proved() -> None:
    folders = {(1, 1): True, (2, 1): True, (3, 1): False}
    verdicts = judged(folders, damaged=((1, 1), (2, 1)), keep_last=1, abandoned_before=1e9)
    assert gone(verdicts) == []
    assert set(said(verdicts).values()) == {"nothing can be proved, so nothing goes"}


def test_the_last_provable_one_stays_behind_newer_damaged_ones() -> None:
    folders = {(1, 1): True, (2, 1): True, (3, 2): True}
    assert gone(judged(folders, damaged=((2, 1), (3, 2)), keep_last=1)) == []


@pytest.mark.parametrize("seed", range(300))
def test_the_newest_provable_one_that_counts_never_goes(seed: int) -> None:
    bits = seed * 2654435761
    folders = {(step, 1 + step % 3): bool(bits >> step & 1) for step in range(1, 9)}
    damaged = tuple(which for which in folders if bits >> (8 + which[0]) & 1)
    resumed = (Resumed(2, bits >> 3 & 7, 1), Resumed(3, bits >> 5 & 7, 2))
    rules = {"keep_last": 1 + (bits >> 18 & 1), "keep_every_steps": bits >> 20 & 3, "keep_best": bits >> 22 & 1}
    verdicts = judged(folders, damaged=damaged, resumed=resumed, epoch=3, abandoned_before=1.0, **rules)
    valid = [one for one in verdicts if one.held.fault is None and not one.void]
    assert all(one.keeps for one in valid[: rules["keep_last"]])
    assert valid or all(one.keeps for one in verdicts)


def test_leftovers_of_dead_attempts_go_and_own_newer_ones_stay() -> None:
    verdicts = judged({(3, 1): False, (9, 1): False, (4, 2): True, (3, 2): False, (5, 2): False})
    assert gone(verdicts) == [(3, 1), (3, 2), (9, 1)]
    assert said(verdicts)[9, 1] == "an upload that was not finished"
    assert said(verdicts)[5, 2] == "perhaps still being uploaded"


@pytest.mark.parametrize(("changed", "goes"), [({(5, 2): 99.0}, True), ({(5, 2): 101.0}, False), ({}, False)])
def test_the_newest_attempts_own_upload_goes_once_it_is_known_to_be_old(
    changed: dict[Which, float], goes: bool
) -> None:
    verdicts = judged({(4, 2): True, (5, 2): False}, changed=changed, abandoned_before=100.0)
    assert gone(verdicts) == ([(5, 2)] if goes else [])


def test_what_a_newer_attempt_made_is_never_touched() -> None:
    folders = {(1, 3): True, (2, 3): False, (1, 2): True, (2, 2): True, (3, 2): True}
    verdicts = judged(folders)
    assert gone(verdicts) == [(1, 2)]
    assert said(verdicts)[1, 3] == "a newer attempt's"


def test_the_heldout_loss_of_a_manifest_is_a_number_or_none() -> None:
    assert [heldout_loss_of(extra) for extra in ({"heldout_loss": 1.5}, {"heldout_loss": "x"}, {})] == [1.5, None, None]


def test_what_a_roll_back_may_need_is_always_there() -> None:
    kept: dict[Which, bool] = {}
    for step in range(5, 400, 5):
        kept[step, 1] = True
        verdicts = judged(kept, keep_last=1, back_steps=12)
        for which in gone(verdicts):
            del kept[which]
        # Wherever the bad step comes before the next save.
        for bad in range(step + 1, step + 6):
            assert bad - 1 - 12 < 5 or any(one <= bad - 1 - 12 for one, _ in kept)
    assert sorted(step for step, _ in kept) == [380, 385, 390, 395]
    assert said(verdicts)[380, 1] == "a roll back by 12 steps may need it"


@pytest.mark.parametrize("every", [2, 5, 7, 20])
@pytest.mark.parametrize("back_steps", [1, 3, 5, 12, 41])
@pytest.mark.parametrize("roll_backs", [1, 2, 4])
def test_roll_backs_right_after_one_another_all_find_what_to_go_back_to(
    every: int, back_steps: int, roll_backs: int
) -> None:
    kept: dict[Which, bool] = {}
    for step in range(every, 300, every):
        kept[step, 1] = True
        for which in gone(judged(kept, keep_last=1, back_steps=back_steps, roll_backs=roll_backs)):
            del kept[which]
        at = step
        for _ in range(roll_backs):
            # The step after what was resumed from is bad.
            if at - back_steps < every:
                break
            at = max(one for one, _ in kept if one <= at - back_steps)


def test_for_later_roll_backs_one_checkpoint_of_each_so_many_steps_is_enough() -> None:
    kept: dict[Which, bool] = {}
    for step in range(10, 1010, 10):
        kept[step, 1] = True
        for which in gone(judged(kept, keep_last=1, back_steps=100, roll_backs=3)):
            del kept[which]
    assert sorted(step for step, _ in kept) == [700, 800, *range(900, 1010, 10)]


def test_without_steps_to_go_back_the_newest_is_enough_for_a_roll_back() -> None:
    assert gone(judged(SIX, keep_last=1, back_steps=0)) == [(step, 1) for step in range(1, 6)]
