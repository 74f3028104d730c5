from pathlib import Path

from steelrail.artifacts.jobs import FILE, NotedJob, note_job, noted_jobs


def test_jobs_are_noted_once_each_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    first, second = NotedJob("shards", "k", "7"), NotedJob("fabric", "f", "8")
    for job in (first, second, first):
        note_job(tmp_path / "demo", job)
    with (tmp_path / "demo" / FILE).open("a") as file:
        file.write('{"stage":"sha')
    assert (first, second) == noted_jobs(tmp_path / "demo")
    assert () == noted_jobs(tmp_path / "nothing")
