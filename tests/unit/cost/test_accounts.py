"""What Slurm's accounting of a finished run may still lack."""

from __future__ import annotations

from pathlib import Path

from synthetic import attempt

from steelrail.cost.accounts import missing
from steelrail.formats.sacct import job_rows, parse

REAL = job_rows(parse((Path(__file__).parents[2] / "data" / "slurm" / "sacct-requeue-resize.txt").read_text()))
BEGAN = attempt(1, 1796042518.0, 1796042520.0, job_id="22")


def test_nothing_is_missing_when_every_job_ended_and_every_attempt_has_a_row() -> None:
    assert missing(REAL, {"22": "train", "23": "shards"}, [BEGAN]) is None


def test_a_job_without_rows_is_missing() -> None:
    assert "job 99 of fabric must be ended" in str(missing(REAL, {"99": "fabric"}, []))


def test_a_job_whose_next_row_has_not_come_is_missing() -> None:
    assert "is RESIZING" in str(missing({"22": REAL["22"][:2]}, {"22": "train"}, [BEGAN]))


def test_an_attempt_after_the_last_row_is_missing() -> None:
    late = attempt(2, 1796049999.0, None, job_id="22")
    assert "attempt 2 of job 22 must be within a row" in str(missing(REAL, {"22": "train"}, [BEGAN, late]))
