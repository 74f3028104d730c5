"""Row 2: an exception or an exit on one rank: all ranks gone at once, retried; the same again and again stops."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from restarts import AT_STEP, GONE_SECONDS, at_step, back_after, went_on
from runs import RANKS, WAIT_SECONDS, Case, Curve, pace, until

from steelrail.clients import process

CULPRIT = 1
REASONS = {
    "raise": f"at step {AT_STEP - 1}: DrillError: raised on purpose in productive at step {AT_STEP}",
    "exit": "ended without a word (Exited with exit code 99)",
}


def drill(kind: str, attempt: int) -> dict[str, Any]:
    return {"kind": kind, "at_step": AT_STEP, "rank": CULPRIT, "attempt": attempt}


@pytest.mark.row(2, "step")
@pytest.mark.parametrize("kind", REASONS)
def test_all_ranks_are_gone_in_ten_seconds_and_retried(
    kind: str, case: Case, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    case.settings["drills"].append(drill(kind, 1))
    driver = case.begin()
    at_step(case, 1, 3)
    ranks = [case.pid(1, rank) for rank in range(RANKS)]
    until(lambda: not process.alive(ranks[CULPRIT]), WAIT_SECONDS, "the drill's rank is gone")
    gone = until(lambda: not any(process.alive(pid) for pid in ranks), GONE_SECONDS, "all ranks are gone")
    done = case.finish(driver)
    assert done.code == 0, done.said
    lost, ending = went_on(case, undisturbed), case.ending(1)
    assert (ending.data["ending"], ending.data["action"]) == ("job_error", "restart")
    assert ending.data["reason"].startswith(f"rank {CULPRIT} on ")
    assert REASONS[kind] in ending.data["reason"]
    # The last word of the rank: its error, or the step before.
    said = max(one.time for one in case.events(1, "end" if kind == "raise" else "step", CULPRIT))
    assert ending.time - said < GONE_SECONDS
    back = back_after(case, said)
    shows(f"all gone {gone:.1f} s after it, lost {lost} steps, {back:.1f} s from its last word to the next new step")


@pytest.mark.row(2, "step")
def test_the_same_error_three_times_at_one_step_stops_with_its_trace_and_goes_on_once_mended(
    case: Case, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    case.settings["drills"].append(drill("raise", 0))
    done = case.train()
    assert done.code == 8, done.said
    assert f"rank {CULPRIT} on " in done.said
    assert REASONS["raise"] in done.said
    # The trace of the rank that failed, down to where it was raised.
    assert "Traceback (most recent call last)" in done.said
    assert "in perform" in done.said
    assert case.attempts() == 3
    assert case.ending(3).data["action"] == "stop"
    assert [max(case.steps(attempt)) for attempt in (1, 2, 3)] == [AT_STEP - 1] * 3
    case.settings["drills"] = pace(0.15)
    began = time.time()
    again = case.train()
    assert again.code == 0, again.said
    assert case.attempts() == 4
    assert case.resumed(4) == 10
    assert case.curve() == undisturbed
    assert len(json.loads((case.root.root / "jobs.json").read_text())) == 2
    back = back_after(case, began, broken=3)
    shows(f"exit code 8 after {done.seconds:.1f} s, 3 attempts; run again: resumed at 10, new step after {back:.1f} s")
