import pytest

from steelrail.config.schema import Optimizer
from steelrail.train.schedule import learning_rate

SETTINGS = Optimizer(learning_rate=1.0, warmup_steps=10, final_ratio=0.1)


@pytest.mark.parametrize(("step", "expected"), [(1, 0.1), (5, 0.5), (10, 1.0), (60, 0.55), (110, 0.1)])
def test_warm_up_is_linear_and_the_cosine_ends_at_its_share(step: int, expected: float) -> None:
    assert learning_rate(SETTINGS, 110, step) == pytest.approx(expected)


def test_the_rate_never_rises_after_warm_up() -> None:
    rates = [learning_rate(SETTINGS, 110, step) for step in range(10, 111)]
    assert rates == sorted(rates, reverse=True)


def test_without_warm_up_the_first_step_is_near_the_peak() -> None:
    assert learning_rate(Optimizer(learning_rate=1.0), 1000, 1) == pytest.approx(1.0, abs=1e-4)


def test_warm_up_longer_than_the_run_only_rises() -> None:
    rates = [learning_rate(SETTINGS, 5, step) for step in range(1, 6)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
