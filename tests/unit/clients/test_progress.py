"""Progress in a log: a line now and then, and one at the end."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from steelrail.clients import clock, progress


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    now = [0.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    yield now


def test_a_log_gets_a_line_every_ten_seconds_and_one_at_the_end(
    times: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with progress.progress("part 3", 40e6) as meter:
        for second in range(1, 21):
            times[0] = float(second)
            meter.add(2e6, f"{second} files")
    assert [record.getMessage() for record in caplog.records] == [
        "part 3: 20.00 MB of 40.00 MB in 10.0 s, 2.00 MB/s, 10 files",
        "part 3: 40.00 MB of 40.00 MB in 20.0 s, 2.00 MB/s, 20 files",
        "part 3: done, 40.00 MB of 40.00 MB in 20.0 s, 2.00 MB/s, 20 files",
    ]


def test_a_failure_is_not_called_done(times: list[float], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(ValueError), progress.progress("x", 1.0):
        raise ValueError
    assert not caplog.records
