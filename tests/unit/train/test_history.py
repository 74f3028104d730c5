import math

import pytest

from steelrail.config.schema import BadStep
from steelrail.train.history import Fault, History, fault_of, keep_loss, rolled_back_to, take_up, to_plain

SPIKES = BadStep(spike_factor=2.0, spike_window=3)


@pytest.mark.parametrize(
    ("loss", "norm", "what"),
    [
        (math.nan, 1.0, "loss"),
        (math.inf, 1.0, "loss"),
        (1.0, math.nan, "gradient norm"),
        (1.0, math.inf, "gradient norm"),
    ],
)
def test_what_is_not_finite_is_bad_whatever_was_before(loss: float, norm: float, what: str) -> None:
    fault = fault_of(History(), BadStep(), loss, norm)
    assert fault is not None
    assert (fault.what, fault.wanted) == (what, "finite")


@pytest.mark.parametrize(("loss", "bad"), [(4.0, False), (4.1, True)])
def test_a_spike_is_above_the_factor_times_the_median_of_the_window(loss: float, bad: bool) -> None:
    fault = fault_of(History([9.0, 2.0, 1.0, 30.0]), SPIKES, loss, 1.0)
    assert fault == (Fault("loss", "at most 2 x 2, the median of the last 3", 4.1) if bad else None)


def test_no_spike_is_seen_before_the_window_is_full_or_without_a_factor() -> None:
    assert fault_of(History([1.0, 1.0]), SPIKES, 100.0, 1.0) is None
    assert fault_of(History([1.0] * 40), BadStep(), 100.0, 1.0) is None


def test_the_newest_losses_are_kept() -> None:
    history = History()
    for loss in (1.0, 2.0, 3.0, 4.0):
        keep_loss(history, SPIKES, loss)
    assert history.losses == [2.0, 3.0, 4.0]


def test_a_checkpoint_gives_back_the_history_to_the_last_bit() -> None:
    before, after = History([1 / 3, 1e-300, 11.0], [7, 4001]), History([5.0], [1])
    take_up(after, to_plain(before))
    assert after == before


def test_a_checkpoint_without_a_history_left_no_step_out() -> None:
    history = History([5.0], [1])
    take_up(history, {"attempt": 3})
    assert history == History()


@pytest.mark.parametrize(
    ("settings", "step", "expected"),
    [
        ({}, 17, (16, 17)),
        ({"back_steps": 6}, 17, (10, 17)),
        ({"back_steps": 6, "leave_out_steps": 7}, 17, (10, 11)),
        ({"back_steps": 6, "leave_out_steps": 7}, 3, (0, 1)),
    ],
)
def test_a_roll_back_leaves_out_only_what_lies_after_where_it_resumes(
    settings: dict[str, int], step: int, expected: tuple[int, int]
) -> None:
    at_most, first = rolled_back_to(BadStep.model_validate({"policy": "roll_back", **settings}), step)
    assert (at_most, first) == expected
    assert at_most < first <= step
