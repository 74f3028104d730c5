"""Slurm's rows to segments, and attempts to their windows in them."""

from __future__ import annotations

from pathlib import Path

from synthetic import attempt

from steelrail.artifacts.train import Attempt
from steelrail.cost.segments import Segment, as_if_paid, home, segments, unbilled, windows
from steelrail.formats.sacct import job_rows, parse

REAL = (Path(__file__).parents[2] / "data" / "slurm" / "sacct-requeue-resize.txt").read_text()


def segment(number: int, start: float, end: float, state: str = "REQUEUED", job: str = "7") -> Segment:
    return Segment("train", job, number, state, ("node1", "node2"), start, end, 32, 8)


def spans(one: Segment, paid: list[Segment], *attempts: Attempt) -> list[tuple[int, float, float]]:
    return [(window.attempt.attempt, window.start, window.end) for window in windows(one, paid, attempts)]


def test_the_row_after_a_resize_is_not_paid_from_the_jobs_first_start() -> None:
    found = segments(job_rows(parse(REAL)), {"22": "train", "23": "shards", "24": "shards"})
    actual = [(one.job_id, one.segment, one.start - 1796042517, one.end - 1796042517, one.gpus) for one in found]
    assert actual == [("22", 0, 0, 8, 64), ("23", 0, 0, 3, 0), ("22", 1, 14, 23, 64), ("22", 2, 23, 28, 48)]


def test_rows_that_never_started_are_free() -> None:
    assert segments({"24": job_rows(parse(REAL))["24"]}, {"24": "train"}) == ()


def test_an_attempt_is_at_home_in_the_segment_it_began_in() -> None:
    paid = [segment(0, 0, 100), segment(1, 130, 200)]
    assert [home(attempt(1, at, None), paid) for at in (50, 150)] == paid


def test_clocks_may_differ_a_little() -> None:
    paid = [segment(0, 100, 200)]
    assert (home(attempt(1, 98.5, None), paid), home(attempt(1, 201.5, None), paid)) == (paid[0], paid[0])


def test_an_attempt_outside_every_row_is_not_billed() -> None:
    late = attempt(2, 300, 400)
    assert unbilled([attempt(1, 50, 60), late], [segment(0, 0, 100)]) == (late,)


def test_windows_are_apart_and_within_the_segment() -> None:
    one = segment(0, 100, 200)
    found = spans(one, [one], attempt(1, 99, 150), attempt(2, 149, 180), attempt(3, 185, 260))
    assert found == [(1, 100, 150), (2, 150, 180), (3, 185, 200)]


def test_an_attempt_whose_end_nobody_wrote_ends_with_its_segment() -> None:
    one = segment(0, 100, 200)
    assert spans(one, [one], attempt(1, 110, None)) == [(1, 110, 200)]


def test_an_end_written_after_a_requeue_does_not_reach_into_the_next_segment() -> None:
    paid = [segment(0, 100, 200, "NODE_FAIL"), segment(1, 210, 300)]
    assert spans(paid[1], paid, attempt(1, 110, 230)) == []


def test_an_attempt_goes_on_over_a_resize() -> None:
    paid = [segment(0, 100, 200, "RESIZING"), segment(1, 200, 300)]
    assert [spans(one, paid, attempt(1, 110, 205)) for one in paid] == [[(1, 110, 200)], [(1, 200, 205)]]


def test_attempts_of_another_job_are_elsewhere() -> None:
    one = segment(0, 100, 200, job="8")
    assert spans(one, [one], attempt(1, 110, 120)) == []


def test_without_accounts_every_attempt_is_a_segment_of_its_own() -> None:
    found = as_if_paid([attempt(2, 50, 70), attempt(1, 10, 40)], 64)
    assert [(one.start, one.end, one.gpus) for one in found] == [(10, 40, 64), (50, 70, 64)]
