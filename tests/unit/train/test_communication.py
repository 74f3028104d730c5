from collections.abc import Callable

import torch

from steelrail.train.communication import Waits


def ticking(*times: float) -> Callable[[], float]:
    left = iter(times)
    return lambda: next(left)


def test_time_inside_counts_and_time_outside_does_not() -> None:
    waits = Waits(ticking(10.0, 12.0, 50.0, 50.5), torch.device("cpu"))
    with waits.around():
        pass
    with waits.around():
        pass
    assert waits.take() == 2.5


def test_seconds_are_taken_once() -> None:
    waits = Waits(ticking(0.0, 1.0), torch.device("cpu"))
    with waits.around():
        pass
    assert (waits.take(), waits.take()) == (1.0, 0.0)
