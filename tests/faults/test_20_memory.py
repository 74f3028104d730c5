"""Row 20: a host whose memory runs out (a real limit on a rank that runs): named as such, and never tried for ever."""

from __future__ import annotations

import resource
from collections.abc import Callable

import pytest
from restarts import at_step, back_after, went_on
from runs import Case, Curve, until

from steelrail.launch.memory import DO, HOST

CULPRIT = 1


def starve(case: Case, attempt: int) -> None:
    """Let one rank take no more memory of its own from now on; what it asks for, the kernel refuses."""
    resource.prlimit(case.pid(attempt, CULPRIT), resource.RLIMIT_DATA, (0, 0))


@pytest.mark.row(20, "step")
def test_a_rank_that_the_host_gives_no_memory_is_named_so_and_restarted(
    case: Case, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    driver = case.begin()
    at_step(case, 1)
    starve(case, 1)
    done = case.finish(driver)
    assert done.code == 0, done.said
    lost, ending = went_on(case, undisturbed), case.ending(1)
    assert f"rank {CULPRIT} on " in ending.data["reason"]
    assert HOST in ending.data["reason"]
    assert DO[HOST] in ending.data["reason"]
    said = ending.data["reason"].partition(f"{HOST}: ")[2][:60]
    shows(f'"{said}...": lost {lost} steps, {back_after(case, ending.time):.1f} s from its end to the next new step')


@pytest.mark.row(20, "step")
def test_memory_that_runs_out_again_and_again_stops_the_run_with_what_to_do(
    case: Case, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    driver = case.begin()
    for attempt in (1, 2, 3):
        at_step(case, attempt)
        starve(case, attempt)
    done = case.finish(driver)
    assert done.code == 8, done.said
    assert HOST in done.said
    assert DO[HOST] in done.said
    assert case.attempts() == 3
    assert case.ending(3).data["action"] == "stop"
    until(lambda: not case.owned(), 10.0, "every process of the run is gone")
    again = case.train()
    assert again.code == 0, again.said
    assert case.curve() == undisturbed
    shows(f"exit code 8 after 3 attempts; with memory again: resumed at {case.resumed(4)}")
