"""Row 21: a step whose loss is not finite stops the run, is left out, or is rolled back; never does it stay."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import PACE_SECONDS, STEPS, WAIT_SECONDS, Case, Curve, pace, until
from servers import Server, url

from steelrail.artifacts.events import read_events
from steelrail.artifacts.trainer import EXIT_ROLLED_BACK
from steelrail.checkpoints.layout import METADATA
from steelrail.checkpoints.manifest import decode
from steelrail.errors import TrainError

BAD = 17
# In every attempt: the data is what it is.
NAN = {"kind": "nan", "where": "productive", "at_step": BAD, "rank": 1, "attempt": 0}
WINDOW = {"policy": "roll_back", "back_steps": 4, "leave_out_steps": 3}  # from 10, without 15, 16 and 17


def with_bad_step(case: Case, **answer: Any) -> Case:
    """Have a step be bad, in every attempt, and say what follows."""
    case.settings["drills"] = [*pace(PACE_SECONDS), NAN]
    case.settings["train"]["bad_step"] = answer
    return case


def skipped(case: Case) -> list[int]:
    """Return the steps left out, by the rows of the attempts that made them last."""
    marks = dict[int, bool]()
    for path in sorted((case.root.root / "metrics").glob("attempt-*.jsonl")):
        marks |= {row["step"]: row["skipped"] for row in map(json.loads, path.read_text().splitlines())}
    return sorted(step for step, mark in marks.items() if mark)


def last_weights(case: Case) -> dict[str, str]:
    """Return the digest of every file of the last checkpoint: weights and moments of both ranks."""
    newest = case.committed()[-1]
    assert int(newest.split("-")[0]) == STEPS
    manifest = decode(case.read(f"steps/{newest}/manifest.json"), newest)
    return {file.name: file.sha256 for file in manifest.files if file.name != METADATA}


def same(one: Curve, other: Curve) -> bool:
    """Whether two curves are equal to the last bit, where a loss may be not a number."""
    return repr(sorted(one.items())) == repr(sorted(other.items()))


@pytest.fixture(scope="module")
def rolled(server: Server, manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A run that rolled back at its bad step, and went on to its end."""
    folder = tmp_path_factory.mktemp("rolled") / "run"
    case = with_bad_step(Case.new(folder, server, url(server), manifest), **WINDOW)
    try:
        done = case.train()
        assert done.code == 0, done.said
    finally:
        case.kill()
    return case


@pytest.mark.row(21, "step")
def test_a_bad_step_that_stops_the_run_leaves_nothing_of_itself(case: Case, shows: Callable[[str], None]) -> None:
    done = with_bad_step(case, policy="stop").train()
    assert done.code == TrainError.exit_code
    assert f"loss must be finite, is nan (step {BAD}, sequences 64 to 67" in done.said
    assert max(case.curve()) == max(step for attempt in (1, 2, 3) for step in case.steps(attempt)) == BAD - 1
    assert case.committed()[-1].startswith("0000000015")
    shows(f"exit code {done.code} after {case.attempts()} attempts that met it at step {BAD}; saved up to 15")


@pytest.mark.row(21, "step")
def test_a_bad_step_that_is_skipped_moves_nothing_after_a_restart_either(
    case: Case, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    driver = with_bad_step(case, policy="skip").begin()
    until(lambda: case.attempts() and BAD + 1 in case.steps(1), WAIT_SECONDS, "the step after the bad one")
    case.kill()
    first, said = case.curve(), case.notes(1)
    done = case.train()
    assert (driver.returncode < 0, done.code) == (True, 0), done.said
    assert f"bad step, skip: loss must be finite, is nan (step {BAD}, sequences 64 to 67" in said
    assert case.resumed(2) == 15
    curve = case.curve()
    assert repr(curve[BAD + 1]) == repr(first[BAD + 1])
    assert [step for step, row in curve.items() if not math.isfinite(row[0])] == skipped(case) == [BAD]
    assert {step: curve[step] for step in range(1, BAD)} == {step: undisturbed[step] for step in range(1, BAD)}
    assert curve[STEPS][1] == undisturbed[STEPS][1]
    shows("left out twice, by the attempt that met it and by the one after kill -9: equal to the last bit")


@pytest.mark.row(21, "step")
def test_a_bad_step_is_rolled_back_inside_the_job_and_trained_around(
    rolled: Case, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    assert rolled.endings() == ["rolled_back", "done"]
    ends = [event for event in read_events(rolled.root.ledger) if event.kind == "attempt_end"]
    assert (ends[0].data["exit_code"], ends[0].data["action"]) == (EXIT_ROLLED_BACK, "restart")
    assert f"loss must be finite, is nan (step {BAD}, sequences 64 to 67" in ends[0].data["reason"]
    record = json.loads((rolled.folder / "results" / "faults" / "train" / "record.json").read_text())
    assert [one["ending"] for one in record["attempts"]] == ["rolled_back", "done"]
    assert (len(record["job_ids"]), record["final_step"]) == (1, STEPS)
    # 15 was saved, and is younger than four good steps before the bad one.
    assert 15 in rolled.saved(1) and rolled.resumed(2) == 10
    assert rolled.steps(2) == list(range(11, STEPS + 1))
    assert skipped(rolled) == [15, 16, BAD]
    curve = rolled.curve()
    assert sorted(curve) == list(range(1, STEPS + 1))
    assert {step: curve[step] for step in range(1, 16)} == {step: undisturbed[step] for step in range(1, 16)}
    assert [step for step, row in curve.items() if not math.isfinite(row[0])] == [BAD]
    assert [curve[step][1] for step in curve] == [undisturbed[step][1] for step in curve]
    assert curve[18][0] != undisturbed[18][0]
    lost = {event.data["step"] for event in rolled.events(2, "step", rank=1) if "lost" in event.data["seconds"]}
    assert lost == {15, 16, BAD}
    again = rolled.events(2, "step")[0].time - rolled.events(1, "rolled_back")[0].time
    shows(f"resumed at 10, left out 15 to {BAD}, one job; first step {again:.1f} s after the decision")


@pytest.mark.row(21, "after the roll back")
@pytest.mark.parametrize("moment", ["decided, before the next attempt resumed", "on the new branch"])
def test_a_run_killed_after_a_roll_back_ends_as_one_that_was_not(
    moment: str, case: Case, rolled: Case, shows: Callable[[str], None]
) -> None:
    with_bad_step(case, **WINDOW).begin()
    decided = "fence/00000001.rollback.json"
    until(lambda: case.attempts() and case.events(1, "rolled_back"), WAIT_SECONDS, "the roll back")
    if moment == "on the new branch":
        until(lambda: BAD + 2 in case.steps(2), WAIT_SECONDS, "a step after the bad one")
    else:
        until(lambda: decided in case.objects("fence/"), WAIT_SECONDS, "the decision in the store")
    case.kill()
    resumed = f"fence/{case.attempts():08d}.resume.json" in case.objects("fence/") and case.attempts() > 1
    assert resumed is (moment == "on the new branch")
    done = case.train()
    assert done.code == 0, done.said
    assert case.endings()[-1] == "done"
    last = case.attempts()
    assert case.resumed(last) == (15 if resumed else 10)
    assert case.events(last, "rolled_back") == []
    assert skipped(case) == [15, 16, BAD]
    assert same(case.curve(), rolled.curve())
    assert last_weights(case) == last_weights(rolled)
    shows(f"resumed at {case.resumed(last)}; curve, weights and moments equal to the last bit")


@pytest.mark.row(21, "after the roll back")
def test_more_roll_backs_than_the_limit_end_the_run(case: Case, shows: Callable[[str], None]) -> None:
    with_bad_step(case, policy="roll_back", limit=1)
    case.settings["drills"].append({**NAN, "at_step": 8})
    done = case.train()
    assert done.code == TrainError.exit_code
    assert f"roll backs must be at most 1, is 2 (loss nan) (step {BAD}, sequences 64 to 67" in done.said
    assert case.endings()[0] == "rolled_back"
    assert [case.resumed(attempt) for attempt in (2, 3)] == [5, 15]
    shows(f"the second one is refused: exit code {done.code}, {case.attempts()} attempts")
