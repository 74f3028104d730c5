"""Rows 4 and 22: a host is lost, with or without another in its place, and with what its NVMe held."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable

import pytest
from on_slurm import EVERY, OnSlurm, signal_rank, spare, went_well
from runs import Curve, until
from servers import Server

MENDED_AFTER_SECONDS = 60.0
SLOW_SECONDS = 2.0


def nodes(case: OnSlurm, attempt: int) -> list[str]:
    """Return the hosts of an attempt's ranks."""
    paths = (case.root.root / "events").glob(f"attempt-{attempt:04d}-rank-*.jsonl")
    ranks = sorted(int(path.stem.rsplit("-", 1)[1]) for path in paths)
    return [case.events(attempt, "enter", rank)[0].host for rank in ranks[::2]]


@pytest.mark.row(4, "step; link cut, back after 60 s, no spare")
def test_the_job_waits_for_a_lost_node_that_comes_back(
    slurm_case: OnSlurm, calm: Curve, shows: Callable[[str], None]
) -> None:
    driver = slurm_case.begin()
    slurm_case.await_step(EVERY + 2, driver)
    job, cut = slurm_case.job(), time.time()
    slurm_case.cluster.control("cut", "node2")
    time.sleep(MENDED_AFTER_SECONDS)
    slurm_case.cluster.await_state(job, "PENDING", 60)
    slurm_case.cluster.control("mend", "node2")
    mended = time.time()
    slurm_case.await_new_step(driver, 1)
    went_well(slurm_case, driver, calm)
    shows(
        f"lost {slurm_case.lost(1)} steps, new step {slurm_case.progress(mended, 1):.1f} s after the link was back "
        f"({mended - cut:.0f} s after the cut); one job"
    )


@pytest.mark.row(4, "save; link cut, a spare in the partition")
def test_a_spare_of_the_partition_takes_the_lost_nodes_place(
    slurm_case: OnSlurm, calm: Curve, shows: Callable[[str], None]
) -> None:
    with spare(slurm_case.cluster):
        driver = slurm_case.begin()
        slurm_case.await_step(2 * EVERY, driver)
        first, cut = nodes(slurm_case, 1), time.time()
        slurm_case.cluster.control("cut", first[2])
        later = slurm_case.await_new_step(driver, 1)
        assert first[2] not in nodes(slurm_case, later)
        went_well(slurm_case, driver, calm)
    shows(
        f"lost {slurm_case.lost(1)} steps, new step {slurm_case.progress(cut, 1):.1f} s after the cut, "
        f"{moved(slurm_case, first, later)}"
    )


@pytest.mark.row(4, "step; slurmd and step killed")
def test_a_host_whose_processes_are_all_killed_is_replaced(
    slurm_case: OnSlurm, calm: Curve, shows: Callable[[str], None]
) -> None:
    with spare(slurm_case.cluster):
        driver = slurm_case.begin()
        slurm_case.await_step(EVERY + 2, driver)
        first, killed = nodes(slurm_case, 1), time.time()
        slurm_case.cluster.control("kill-host", first[2])
        later = slurm_case.await_new_step(driver, 1)
        went_well(slurm_case, driver, calm)
    shows(
        f"lost {slurm_case.lost(1)} steps, new step after {slurm_case.progress(killed, 1):.1f} s, "
        f"{moved(slurm_case, first, later)}"
    )


@pytest.mark.row(4, "step; slurmd alone killed, its ranks live on")
def test_ranks_whose_slurmd_is_dead_never_commit_beside_their_successors(
    slurm_case: OnSlurm, calm: Curve, shows: Callable[[str], None]
) -> None:
    with spare(slurm_case.cluster):
        for drill in slurm_case.settings["drills"][EVERY + 2 :]:
            # The ranks would be done before Slurm gives the host up.
            drill.update(seconds=SLOW_SECONDS, attempt=1)
        driver = slurm_case.begin()
        slurm_case.await_step(EVERY + 2, driver)
        first = nodes(slurm_case, 1)
        slurm_case.cluster.control("kill-slurmd", first[2])
        went_well(slurm_case, driver, calm)
    assert slurm_case.attempts() > 1
    shows(f"lost {slurm_case.lost(1)} steps; attempts: {', '.join(slurm_case.endings())}; one job")


@pytest.mark.row(4, "step; link cut, a spare in the allocation")
def test_a_spare_of_the_job_takes_the_place_and_nothing_is_read_from_the_store(
    slurm_case: OnSlurm, calm: Curve, shows: Callable[[str], None]
) -> None:
    slurm_case.settings["slurm"]["spare_nodes"] = 1
    with spare(slurm_case.cluster):
        driver = slurm_case.begin()
        until(lambda: slurm_case.attempts() and 4 == len(copied(slurm_case, 1, EVERY)), 300, "a copy on every buddy")
        slurm_case.await_step(EVERY + 2, driver)
        job, first, cut = slurm_case.job(), nodes(slurm_case, 1), time.time()
        slurm_case.cluster.control("cut", first[2])
        slurm_case.await_new_step(driver, 1)
        assert slurm_case.cluster.state(job) == "RUNNING"
        went_well(slurm_case, driver, calm)
    read = where_from(slurm_case, 2)
    assert read["store"] == 0 and read["peer"] > 0
    shows(
        f"lost {slurm_case.lost(1)} steps, new step {slurm_case.progress(cut, 1):.1f} s after the cut; "
        f"{read['peer'] / 1e6:.1f} MB from its buddy, none from the store; nodes kept"
    )


@pytest.mark.row(22, "after the save; the store away, one node's NVMe lost")
def test_a_save_that_the_store_never_had_comes_from_the_buddy(
    slurm_case: OnSlurm, calm: Curve, far: Server, shows: Callable[[str], None]
) -> None:
    slurm_case.settings["store"]["retry_seconds"] = 120.0
    slurm_case.settings["checkpoints"]["max_behind"] = 10
    driver = slurm_case.begin()
    slurm_case.await_step(2 * EVERY + 1, driver)
    far.kill()
    try:
        newest = 3 * EVERY
        until(lambda: 4 == len(copied(slurm_case, 1, newest)), 120, f"a copy of step {newest} on every buddy")
        assert newest not in slurm_case.durable(1)
        signal_rank(slurm_case, "node2", signal.SIGKILL)
        for held in slurm_case.on_nvme("node2"):
            shutil.rmtree(held)
    finally:
        far.start()
    back = time.time()
    slurm_case.await_new_step(driver, 1)
    went_well(slurm_case, driver, calm)
    resumed, read = slurm_case.resumed(2), where_from(slurm_case, 2)
    assert resumed is not None and resumed >= newest
    assert read["store"] == 0 and read["peer"] > 0
    shows(
        f"resumed at {resumed}, {read['peer'] / 1e6:.1f} MB from its buddy, none from the store, new step "
        f"{slurm_case.progress(back, 1):.1f} s after the store was back"
    )


def moved(case: OnSlurm, first: list[str], later: int) -> str:
    """Say which hosts an attempt has that the first had not."""
    new = [host for host in nodes(case, later) if host not in first]
    return f"{', '.join(new) or 'none'} in its place, one job"


def copied(case: OnSlurm, attempt: int, step: int) -> set[str]:
    """Return the hosts that hold a copy of their neighbour's part of a save."""
    told = [event for rank in range(8) for event in case.events(attempt, "copied", rank)]
    return {event.host for event in told if event.data["step"] == step}


def where_from(case: OnSlurm, attempt: int) -> dict[str, int]:
    """Return the bytes that an attempt's restore read, by where they came from."""
    told = [event.data["bytes"] for rank in range(8) for event in case.events(attempt, "restore", rank)]
    return {place: sum(one[place] for one in told) for place in ("nvme", "peer", "store")}
