"""Rows 5, 6 and 7: Slurm takes the nodes away, the time is up, or somebody requeues or cancels the job."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from on_slurm import EVERY, OnSlurm, went_well
from runs import Curve, until

SLOW_SECONDS = 2.0


def preempt(case: OnSlurm) -> None:
    """A job of a higher partition takes all four hosts for a second."""
    case.cluster.user("srun", "--partition=urgent", "--nodes=4", "--time=1", "sleep", "1")


@pytest.mark.row(5, "step, then save")
@pytest.mark.parametrize(("partition", "most"), [("gpu", EVERY + 2), ("gpu-grace", 1)], ids=["grace 0", "grace 20"])
def test_a_preempted_run_goes_on_under_its_id(
    partition: str, most: int, slurm_case: OnSlurm, calm: Curve, shows: Callable[[str], None]
) -> None:
    slurm_case.settings["slurm"]["partition"] = partition
    driver = slurm_case.begin()
    slurm_case.await_step(EVERY + 2, driver)
    told, attempt = list[str](), 1
    for moment, step in (("step", 5 * EVERY), ("save", 0)):
        began = time.time()
        preempt(slurm_case)
        after, before = slurm_case.await_new_step(driver, attempt), attempt
        assert slurm_case.lost(before) <= most
        if step:
            # Right after this step its save begins.
            slurm_case.await_step(step, driver, after)
        attempt = after
        told.append(
            f"{moment}: lost {slurm_case.lost(before)} steps, on again after {slurm_case.begun(after) - began:.1f} s"
        )
    went_well(slurm_case, driver, calm)
    shows("; ".join(told) + f"; {', '.join(slurm_case.endings())}")


@pytest.mark.row(6, "step, in a collective")
def test_at_the_time_limit_a_run_saves_and_goes_on_in_the_next_segment(
    slurm_case: OnSlurm, calm: Curve, shows: Callable[[str], None]
) -> None:
    slurm_case.settings["slurm"] |= {"minutes": 2, "lead_seconds": 60}
    for drill in slurm_case.settings["drills"]:
        # One rank is late at every step: the others are in a collective when the signal comes.
        drill.update(seconds=SLOW_SECONDS, rank=5)
    driver = slurm_case.begin()
    slurm_case.await_step(1, driver)
    job = slurm_case.job()
    slurm_case.await_new_step(driver, 1)
    assert slurm_case.endings()[0] == "walltime" and slurm_case.lost(1) == 0
    went_well(slurm_case, driver, calm)
    states = [one.state for one in slurm_case.cluster.segments(job)]
    shows(f"lost 0 steps at {slurm_case.steps(1)[-1]}; Slurm's rows: {', '.join(states)}; one job")


@pytest.mark.row(7, "step")
def test_a_requeued_job_goes_on_and_a_cancelled_one_stays_so_until_it_is_asked_for(
    slurm_case: OnSlurm, calm: Curve, shows: Callable[[str], None]
) -> None:
    driver = slurm_case.begin()
    slurm_case.await_step(EVERY + 2, driver)
    job, began = slurm_case.job(), time.time()
    slurm_case.cluster.user("scontrol", "requeue", job)
    later = slurm_case.await_new_step(driver, 1)
    requeue = f"requeue: lost {slurm_case.lost(1)} steps, on again after {slurm_case.begun(later) - began:.1f} s"
    assert slurm_case.lost(1) <= 1 and slurm_case.job() == job
    slurm_case.await_step(5 * EVERY + 2, driver, later)
    slurm_case.cluster.user("scancel", job)
    done = slurm_case.finish(driver)
    assert done.code == 9 and "is cancelled" in done.said, done.said[-3000:]
    until(lambda: not slurm_case.queued(), 60.0, "the cancelled job is gone")
    time.sleep(5.0)
    assert not slurm_case.queued()
    went_well(slurm_case, slurm_case.begin(), calm, jobs=2)
    shows(f"{requeue}; scancel: exit code 9, stays cancelled; run again: lost {slurm_case.lost(later)} steps")
