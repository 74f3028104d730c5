"""Row 3: a rank that hangs, silently or not, is named by the watchdog in time and restarted in the same job."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from proxy import Fault, Proxy
from restarts import AT_STEP, Blow, at_step, back_after, went_on
from runs import Case, Curve

HANG_SECONDS = 15.0
# The watchdog looks once a second, a rank's last sign of life is up to another old, and the stacks take two.
SLACK_SECONDS = 10.0


@pytest.fixture
def watched(case: Case) -> Case:
    """A run whose ranks may be silent, or without progress, for so long."""
    case.settings["launch"]["hang_seconds"] = HANG_SECONDS
    return case


def named(case: Case, rank: int, how: str, moment: float) -> str:
    """The watchdog named this rank, in the ledger and to whoever waits, within its time; return that as a figure."""
    ending = case.ending(1)
    reason = ending.data["reason"]
    assert (ending.data["ending"], ending.data["action"]) == ("stalled", "restart"), reason
    assert reason.startswith(f"rank {rank} on "), reason
    assert how in reason
    assert reason in case.outputs[-1].read_text()
    steps = [one.data["step"] and one.time - one.data["start"] for one in case.events(1, "step")]
    # Its worst step stands for the 99th percentile of so few.
    limit = max(HANG_SECONDS, 3 * max(steps, default=0.0))
    assert ending.time - moment < limit + SLACK_SECONDS
    at = reason.partition("at: ")[2]
    return f'named {ending.time - moment:.1f} s later at "{at}" (limit {limit:.0f} s)'


@pytest.mark.row(3, "step")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_stopped_at_a_step_is_named_and_the_run_goes_on(
    rank: int, watched: Case, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    stop = Blow(watched, 1, rank, signal.SIGSTOP)
    driver = watched.begin()
    at_step(watched, 1)
    stop()
    done = watched.finish(driver)
    assert done.code == 0, done.said
    lost, said = went_on(watched, undisturbed), named(watched, rank, "gave no sign of life", stop.at)
    shows(f"{said}; lost {lost} steps, {back_after(watched, stop.at):.1f} s to the next new step")


@pytest.mark.row(3, "step")
def test_a_rank_that_beats_and_never_comes_to_the_collective_is_named_and_not_the_one_that_waits(
    watched: Case, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    watched.settings["drills"].append({"kind": "hang", "at_step": AT_STEP, "rank": 1, "attempt": 1})
    done = watched.train()
    assert done.code == 0, done.said
    moment = watched.events(1, "step", 1)[-1].time
    lost, said = went_on(watched, undisturbed), named(watched, 1, "made no progress", moment)
    assert "; rank 0 waits in " in watched.ending(1).data["reason"]
    shows(f"{said}; lost {lost} steps, {back_after(watched, moment):.1f} s to the next new step")


@pytest.mark.row(3, "save")
def test_a_rank_stopped_at_the_upload_of_its_file_is_named_and_the_run_goes_on(
    watched: Case, proxy: Proxy, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    stop = Blow(watched, 1, 1, signal.SIGSTOP)
    proxy.add(Fault("pass", verb="put", key="0000000010-00000001/__1_0.distcp", then=stop))
    done = watched.train()
    assert done.code == 0, done.said
    lost, said = went_on(watched, undisturbed), named(watched, 1, "gave no sign of life", stop.at)
    shows(f"{said}; lost {lost} steps, {back_after(watched, stop.at):.1f} s to the next new step")


@pytest.mark.row(3, "init")
def test_a_rank_stopped_before_its_first_step_is_named_and_the_run_begins_anew(
    watched: Case, proxy: Proxy, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    stop = Blow(watched, 1, 1, signal.SIGSTOP)
    # Not earlier: a rank that has said no more than that it starts has sixty seconds, whatever is set.
    proxy.add(Fault("pass", verb="put", key="/fence/00000001.resume.json", then=stop))
    done = watched.train()
    assert done.code == 0, done.said
    said = named(watched, 1, "gave no sign of life", stop.at)
    assert watched.steps(1) == []
    assert watched.curve() == undisturbed
    assert (watched.attempts(), len(watched.jobs([1, 2]))) == (2, 1)
    first = watched.events(2, "step")[0].time - stop.at
    shows(f"{said}; {first:.1f} s to the first step")
