"""Row 17: the same key on eight ranks, on four, and on eight again."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from on_slurm import EVERY, NODES, STEPS, OnSlurm
from runs import Curve, until

MOST = 1e-5


@pytest.mark.row(17, "resume")
def test_a_run_goes_on_with_fewer_ranks_and_with_more(
    slurm_case: OnSlurm, calm: Curve, shows: Callable[[str], None]
) -> None:
    for attempt, nodes, until_step in ((1, NODES, 2 * EVERY + 2), (2, NODES // 2, 5 * EVERY + 2)):
        slurm_case.settings["shape"]["nodes"] = nodes
        driver = slurm_case.begin()
        slurm_case.await_step(until_step, driver, attempt)
        stop(slurm_case, driver)
    slurm_case.settings["shape"]["nodes"] = NODES
    done = slurm_case.train()
    assert done.code == 0, done.said[-4000:]
    found = slurm_case.curve()
    assert sorted(found) == list(range(1, STEPS + 1))
    assert {step: digest for step, (_, digest) in found.items()} == {step: one for step, (_, one) in calm.items()}
    apart = max(abs(found[step][0] - calm[step][0]) for step in calm)
    assert apart < MOST
    again = sum(slurm_case.lost(one) for one in (1, 2))
    assert again == 0
    resumed = f"resumed at {slurm_case.resumed(2)} and {slurm_case.resumed(3)}"
    shows(f"8, 4, 8 ranks: {resumed}, lost 0 steps; losses at most {apart:.1e} apart, the same tokens")


def stop(case: OnSlurm, driver: subprocess.Popen[bytes]) -> None:
    """End a run as its user does, with a checkpoint."""
    told = case.train("stop")
    assert told.code == 0, told.said
    done = case.finish(driver)
    assert done.code == 9, done.said[-4000:]
    until(lambda: not case.queued(), 60.0, "the stopped job is gone")
