"""Row 10: an attempt that was stopped while a newer one took over, and wakes up: one writer's checkpoints count."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from proxy import Fault, Proxy
from runs import STEPS, WAIT_SECONDS, Case, Curve, until


class Sleeper:
    """Stops every process of a run at one request, and holds that request until it is let go."""

    def __init__(self, case: Case) -> None:
        self.case, self.pids = case, list[int]()
        self.asleep, self.go = threading.Event(), threading.Event()

    def stop_here(self) -> None:
        """SIGSTOP to all of the run; returns when ``go`` is set."""
        self.pids = self.case.owned()
        for pid in self.pids:
            os.kill(pid, signal.SIGSTOP)
        self.asleep.set()
        self.go.wait(WAIT_SECONDS)

    def wake(self) -> None:
        """SIGCONT to what was stopped."""
        self.go.set()
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pytest.fixture
def sleeper(case: Case) -> Iterator[Sleeper]:
    made = Sleeper(case)
    yield made
    made.wake()


@pytest.fixture
def newer(case: Case) -> Iterator[Case]:
    """The same run from another clone on other nodes: another driver, another NVMe, the same key in the same store."""
    made = case.beside("newer")
    try:
        yield made
        assert made.leaks() == []
    finally:
        made.kill()


def epochs(case: Case) -> dict[int, int]:
    """Return the epoch of each committed step."""
    return {int(step): int(epoch) for step, epoch in (one.split("-") for one in case.committed())}


def after_five(curve: Curve) -> Curve:
    """Return the steps that the newer clone made: the first five lie in the other one's folder."""
    return {step: made for step, made in curve.items() if step > 5}


@pytest.mark.row(10, "before commit")
def test_a_zombies_commit_is_refused_and_it_exits(
    case: Case, newer: Case, sleeper: Sleeper, proxy: Proxy, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    proxy.add(Fault("pass", verb="put", key="0000000010-00000001/node-00000.json", then=sleeper.stop_here))
    zombie = case.begin()
    assert sleeper.asleep.wait(WAIT_SECONDS)
    newer.settings["checkpoints"]["keep_last"] = 10
    done = newer.train()
    assert done.code == 0, done.said
    assert newer.resumed(1) == 5
    assert newer.curve() == after_five(undisturbed)
    before = epochs(newer)
    sleeper.wake()
    woken = case.finish(zombie)
    assert woken.code == 10, woken.said
    assert "fence must be the newest" in woken.said
    assert epochs(newer) == before == {5: 1, **dict.fromkeys(range(10, STEPS + 1, 5), 2)}
    shows(f"newer attempt resumed at 5 and is done; the zombie ended {woken.seconds:.1f} s after CONT, exit code 10")


@pytest.mark.row(10, "between its look at the fence and its manifest")
def test_a_manifest_that_comes_after_a_newer_attempt_has_begun_counts_for_nobody(
    case: Case, newer: Case, sleeper: Sleeper, proxy: Proxy, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    late = "0000000010-00000001/manifest.json"
    proxy.add(Fault("pass", verb="put", key=late, then=sleeper.stop_here))
    zombie = case.begin()
    assert sleeper.asleep.wait(WAIT_SECONDS)
    # It makes no checkpoint of its own before it is killed: only the rule keeps the next attempt off the late one.
    newer.settings["checkpoints"]["every_steps"] = STEPS
    newer.begin()
    until(lambda: newer.attempts() and 12 in newer.steps(1), WAIT_SECONDS, "the newer attempt is past step 12")
    sleeper.go.set()
    until(lambda: proxy.count("put", late, 200), 60, "the late manifest is in the store")
    newer.kill()
    done = newer.train()
    assert done.code == 0, done.said
    assert 10 in epochs(newer) or STEPS in epochs(newer)
    assert newer.resumed(2) == 5
    assert newer.curve() == after_five(undisturbed)
    sleeper.wake()
    woken = case.finish(zombie)
    assert woken.code == 10, woken.said
    shows(f"resumed at 5, not at the zombie's 10; it ended {woken.seconds:.1f} s after CONT, exit code 10")
