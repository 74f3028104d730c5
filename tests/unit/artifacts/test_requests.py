from pathlib import Path

from steelrail.artifacts.requests import FILE, NotedRequests, Requests, note_requests, noted_requests


def test_requests_add_up_by_kind() -> None:
    one, other = Requests(put=1, get=2, list=3, delete=4), Requests(put=10, get=20, list=30, delete=40)
    assert Requests(put=11, get=22, list=33, delete=44) == one + other


def test_requests_are_noted_each_time_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    noted = NotedRequests(stage="shards", key="k", requests=Requests(put=3))
    for _ in range(2):
        note_requests(tmp_path / "demo", noted)
    with (tmp_path / "demo" / FILE).open("a") as file:
        file.write('{"stage":"sha')
    assert (noted, noted) == noted_requests(tmp_path / "demo")
    assert () == noted_requests(tmp_path / "nothing")
    assert (tmp_path / "demo" / FILE).stat().st_mode & 0o777 == 0o600
