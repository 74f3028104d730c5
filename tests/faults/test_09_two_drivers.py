"""Row 9: two drivers of one run: the second is refused at once, and the first goes on as if alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from restarts import at_step
from runs import WAIT_SECONDS, Case, Curve, until

REFUSED_SECONDS = 30.0  # that a command needs to load on a busy host, and no more


def alone(case: Case, undisturbed: Curve) -> None:
    """One job, one attempt, every loss as undisturbed."""
    assert case.curve() == undisturbed
    assert (case.attempts(), case.endings()) == (1, ["done"])


@pytest.mark.row(9, "start")
def test_of_two_drivers_that_start_together_one_is_refused(
    case: Case, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    drivers = [case.begin(), case.begin()]
    until(lambda: any(one.poll() is not None for one in drivers), WAIT_SECONDS, "one driver is refused")
    refused, other = sorted(drivers, key=lambda one: one.poll() is None)
    done = case.finish(refused)
    assert done.code == 10, done.said
    assert f"must be driven by one process, is driven by process {other.pid} on " in done.said
    assert case.finish(other).code == 0
    alone(case, undisturbed)
    shows(f"exit code 10, process {other.pid} named; the other: one job, one attempt")


@pytest.mark.row(9, "step")
def test_a_second_driver_in_the_middle_is_refused_and_the_first_goes_on(
    case: Case, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    first = case.begin()
    at_step(case, 1, 3)
    second = case.begin()
    done = case.finish(second)
    assert done.code == 10, done.said
    assert f"must be driven by one process, is driven by process {first.pid} on " in done.said
    assert done.seconds < REFUSED_SECONDS
    assert case.finish(first).code == 0
    alone(case, undisturbed)
    shows(f"exit code 10 after {done.seconds:.1f} s; the first: one job, one attempt")
