"""What befalls one rank of a run on this host, and what must be true of the run once it has gone on from there."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from runs import EVERY, STEPS, WAIT_SECONDS, Case, Curve, until

AT_STEP = 12  # past the checkpoint of step 10, with room before that of step 15
GONE_SECONDS = 10.0


@dataclass
class Blow:
    """A signal for one rank of an attempt, given where it is called; ``at`` tells when (Unix seconds)."""

    case: Case
    attempt: int
    rank: int
    number: signal.Signals = signal.SIGKILL
    at: float = 0.0
    pid: int = 0

    def __call__(self) -> None:
        """Give it."""
        self.pid, self.at = self.case.pid(self.attempt, self.rank), time.time()
        os.kill(self.pid, self.number)


def at_step(case: Case, attempt: int, step: int = AT_STEP) -> None:
    """Wait until an attempt has made a step."""
    until(lambda: case.attempts() >= attempt and step in case.steps(attempt), WAIT_SECONDS, f"step {step}")


def parent(pid: int) -> int:
    """Return the process that a rank was forked from, or that started another one; 0 when it is gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def went_on(case: Case, undisturbed: Curve, broken: int = 1) -> int:
    """Attempt ``broken`` was followed by one more inside the same job, to the same end; return the steps lost.

    Nothing is left of it: no process, no upload.
    """
    assert case.curve() == undisturbed
    assert case.attempts() == broken + 1
    assert len(case.jobs([broken, broken + 1])) == 1
    assert case.endings()[-1] == "done"
    assert int(case.committed()[-1].split("-")[0]) == STEPS
    assert case.unfinished() == []
    until(lambda: not case.owned(), GONE_SECONDS, "every process of the run is gone")
    lost = max(case.steps(1)) - (case.resumed(broken + 1) or 0)
    assert 0 <= lost <= 2 * EVERY
    return lost


def back_after(case: Case, moment: float, broken: int = 1) -> float:
    """Return the seconds from ``moment`` (Unix) to the first step that was not made before."""
    before = max(case.steps(1))
    return min(one.time for one in case.events(broken + 1, "step") if one.data["step"] > before) - moment
