"""Rows 8 and 19: the driver is killed and started again; Slurm's daemons restart, its accounts fail and lag."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from on_slurm import EVERY, OnSlurm, kill_driver, went_well
from runs import Curve, until

SACCT = """#!/bin/bash
# Fails thrice, then answers late: what it says is several seconds old.
count=$(cat {folder}/count 2>/dev/null || echo 0)
echo $((count + 1)) >{folder}/count
if [ "$count" -lt 3 ]; then echo 'sacct: error: slurm_persist_conn_open: failed to connect' >&2; exit 1; fi
found=$(/usr/bin/sacct "$@"); rc=$?
sleep 4
[ -z "$found" ] || printf '%s\\n' "$found"
exit $rc
"""


@pytest.fixture
def crowd(slurm_case: OnSlurm) -> Iterator[str]:
    """A job that holds all four hosts for a while."""
    options = ["--nodes=4", "--exclusive", "--partition=gpu", "--time=5", "--output=/dev/null"]
    job = slurm_case.cluster.user("sbatch", "--parsable", *options, "--wrap=sleep 200").strip()
    slurm_case.cluster.wait_until(lambda: slurm_case.cluster.state(job) == "RUNNING", 60, "the other job runs")
    yield job


@pytest.mark.row(8, "pending, running, requeued")
def test_a_driver_started_again_attaches_to_the_one_job(
    slurm_case: OnSlurm, crowd: str, calm: Curve, shows: Callable[[str], None]
) -> None:
    driver = slurm_case.begin()
    until(lambda: slurm_case.queued(), 120.0, "the job is submitted")
    job = slurm_case.job()
    assert slurm_case.cluster.state(job) == "PENDING"
    kill_driver(slurm_case, driver)
    driver = slurm_case.begin()
    slurm_case.cluster.user("scancel", crowd)
    slurm_case.await_step(EVERY + 2, driver)
    kill_driver(slurm_case, driver)
    driver = slurm_case.begin()
    slurm_case.await_step(2 * EVERY + 2, driver)
    slurm_case.cluster.user("scontrol", "requeue", job)
    slurm_case.cluster.await_state(job, "PENDING", 60)
    kill_driver(slurm_case, driver)
    assert slurm_case.queued() == [job]
    went_well(slurm_case, slurm_case.begin(), calm)
    shows(f"killed while pending, running and requeued: one job, attempts {', '.join(slurm_case.endings())}")


@pytest.mark.row(19, "running")
def test_restarted_daemons_and_accounts_that_fail_and_lag_are_never_taken_for_the_end(
    slurm_case: OnSlurm, calm: Curve, shows: Callable[[str], None]
) -> None:
    slurm_case.before = f"{failing_sacct(slurm_case.folder / 'bin')}:"
    driver = slurm_case.begin()
    slurm_case.await_step(EVERY + 2, driver)
    slurm_case.cluster.control("restart", "slurmctld")
    slurm_case.await_step(3 * EVERY + 2, driver)
    slurm_case.cluster.control("restart", "slurmdbd")
    went_well(slurm_case, driver, calm)
    asked = int((slurm_case.folder / "bin" / "count").read_text())
    assert asked > 3, "its accounts were never asked"
    assert slurm_case.endings() == ["done"]
    shows(f"one attempt, lost 0 steps; sacct asked {asked} times, failed thrice, then 4 s late")


def failing_sacct(folder: Path) -> Path:
    """Have a folder with such a sacct, which the user may write to."""
    folder.mkdir()
    (folder / "sacct").write_text(SACCT.format(folder=folder))
    (folder / "sacct").chmod(0o755)
    subprocess.run(["chown", "-R", "steelrail:steelrail", str(folder)], check=True)
    return folder
