"""Rows 1, 2 and 3 on four hosts: a rank is killed, ends, or stands still; the nodes are kept."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest
from on_slurm import EVERY, OnSlurm, signal_rank, went_well
from runs import Curve

NAMED_WITHIN_SECONDS = 60.0
GONE_WITHIN_SECONDS = 10.0
EXITING_RANK = 3


@pytest.mark.row(1, "step, eight ranks on four hosts")
def test_a_killed_rank_costs_an_interval_and_no_node(
    slurm_case: OnSlurm, calm: Curve, shows: Callable[[str], None]
) -> None:
    driver, attempt, kills = slurm_case.begin(), 1, list[tuple[int, int, float]]()
    for rank, host, step in ((0, "node1", EVERY + 2), (4, "node3", 5 * EVERY + 2)):
        slurm_case.await_step(step, driver, attempt)
        job = slurm_case.job()
        kills.append((rank, attempt, time.time()))
        signal_rank(slurm_case, host)
        attempt = slurm_case.await_new_step(driver, attempt)
        assert slurm_case.cluster.state(job) == "RUNNING" and slurm_case.restarts(job) == 0
    went_well(slurm_case, driver, calm)
    assert all(slurm_case.lost(killed) <= EVERY + 2 for _, killed, _ in kills)
    told = [
        f"rank {rank}: lost {slurm_case.lost(killed)} steps, new step after {slurm_case.progress(at, killed):.1f} s"
        for rank, killed, at in kills
    ]
    shows("; ".join(told) + "; nodes kept")


@pytest.mark.row(2, "step, eight ranks on four hosts")
def test_ranks_beside_one_that_ended_are_gone_soon(
    slurm_case: OnSlurm, calm: Curve, shows: Callable[[str], None]
) -> None:
    slurm_case.settings["drills"].append({"kind": "exit", "at_step": EVERY + 3, "rank": EXITING_RANK, "attempt": 1})
    driver = slurm_case.begin()
    went_well(slurm_case, driver, calm)
    last = max(event.time for event in slurm_case.events(1, "step", EXITING_RANK))
    gone = slurm_case.ending(1).time - last
    assert gone < GONE_WITHIN_SECONDS
    shows(f"all gone {gone:.1f} s after its last step; lost {slurm_case.lost(1)} steps, one job")


@pytest.mark.row(3, "step, eight ranks on four hosts")
def test_a_rank_that_stands_still_is_named_and_its_host_kept(
    slurm_case: OnSlurm, calm: Curve, shows: Callable[[str], None]
) -> None:
    driver = slurm_case.begin()
    slurm_case.await_step(EVERY + 2, driver)
    job, stopped = slurm_case.job(), time.time()
    signal_rank(slurm_case, "node2", signal.SIGSTOP)
    slurm_case.await_new_step(driver, 1)
    assert slurm_case.cluster.state(job) == "RUNNING" and slurm_case.restarts(job) == 0
    went_well(slurm_case, driver, calm)
    ended = slurm_case.ending(1)
    assert ended.data["ending"] == "stalled" and "rank 2" in str(ended.data), ended.data
    assert ended.time - stopped < NAMED_WITHIN_SECONDS
    shows(
        f"rank 2 named and all gone after {ended.time - stopped:.1f} s, new step after "
        f"{slurm_case.progress(stopped, 1):.1f} s, lost {slurm_case.lost(1)} steps; nodes kept"
    )
