from pathlib import Path

import pytest

from steelrail.artifacts.jobs import FILE, NotedJob, note_job, noted_jobs
from steelrail.errors import InputError


def test_jobs_are_noted_once_each_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    first, second = NotedJob("shards", "k", "7"), NotedJob("fabric", "f", "8")
    for job in (first, second, first):
        note_job(tmp_path / "demo", job)
    with (tmp_path / "demo" / FILE).open("a") as file:
        file.write('{"stage":"sha')
    assert (first, second) == noted_jobs(tmp_path / "demo")
    assert () == noted_jobs(tmp_path / "nothing")


def test_a_line_that_no_writer_wrote_is_an_error_and_not_a_job_less_on_the_bill(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"stage":"shards","job_id":"7"}\n')
    with pytest.raises(InputError, match="job noted must be as it was written, is damaged"):
        noted_jobs(tmp_path)
