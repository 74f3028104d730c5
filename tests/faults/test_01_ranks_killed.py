"""Row 1: kill -9 of a rank, or of what the ranks of a node are forked from: restarted in the same job, nothing else."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from proxy import Fault, Proxy
from restarts import Blow, at_step, back_after, parent, went_on
from runs import Case, Curve

TEN = "0000000010-00000001"


@pytest.mark.row(1, "step")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_killed_at_a_step_is_restarted_in_the_same_job(
    rank: int, case: Case, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    blow = Blow(case, 1, rank)
    driver = case.begin()
    at_step(case, 1)
    blow()
    done = case.finish(driver)
    assert done.code == 0, done.said
    lost = went_on(case, undisturbed)
    ending = case.ending(1)
    assert ending.data["reason"].startswith(f"rank {rank} on ")
    assert "was ended by a signal (Killed)" in ending.data["reason"]
    assert case.resumed(2) in case.saved(1)
    shows(f"lost {lost} steps, {back_after(case, blow.at):.1f} s to the next new step")


@pytest.mark.row(1, "step")
def test_ranks_whose_nodes_process_was_killed_are_gone_and_restarted_in_the_same_job(
    case: Case, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    driver = case.begin()
    at_step(case, 1)
    ranks, killed = case.pids(), time.time()
    os.kill(parent(ranks[0]), signal.SIGKILL)
    done = case.finish(driver)
    assert done.code == 0, done.said
    lost = went_on(case, undisturbed)
    reason = case.ending(1).data["reason"]
    assert "the process that the ranks are forked from was killed by signal 9" in reason
    shows(f"lost {lost} steps, {back_after(case, killed):.1f} s to the next new step")


# What the proxy does at the request at which a rank is killed: a reset, so that the server never hears of it.
SAVING = {
    "upload": Fault("reset", verb="put", key=f"{TEN}/__RANK_0.distcp"),
    "before the manifest": Fault("reset", verb="put", key=f"{TEN}/manifest.json"),
    "after the manifest": Fault("pass", verb="put", key=f"{TEN}/manifest.json"),
}


@pytest.mark.parametrize(
    "moment", [pytest.param(one, marks=pytest.mark.row(1, one), id=one.replace(" ", "_")) for one in SAVING]
)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_killed_while_a_checkpoint_is_saved_costs_one_save_at_most(
    moment: str, rank: int, case: Case, proxy: Proxy, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    kept, blow = SAVING[moment], Blow(case, 1, rank)
    fault = Fault(kept.kind, kept.verb, kept.key.replace("RANK", str(rank)))
    if moment == "after the manifest":
        fault.after = blow
    else:
        fault.then = blow
    proxy.add(fault)
    done = case.train()
    assert done.code == 0, done.said
    assert blow.at > 0
    lost = went_on(case, undisturbed)
    # It lies on NVMe whatever the store had: the manifest alone makes sure of it.
    assert case.resumed(2) in ([10] if moment == "after the manifest" else [5, 10])
    back = back_after(case, blow.at)
    shows(f"resumed at {case.resumed(2)}, lost {lost} steps, {back:.1f} s to the next new step")


@pytest.mark.row(1, "load")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_killed_while_it_loads_a_checkpoint_is_restarted_and_loads_the_same(
    rank: int, half: Case, proxy: Proxy, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    blow = Blow(half, 2, rank)
    proxy.add(Fault("reset", verb="get", key=f"0000000015-00000001/__{rank}_0.distcp", then=blow))
    done = half.train()
    assert done.code == 0, done.said
    assert blow.at > 0
    assert half.steps(2) == []
    assert half.resumed(3) == 15
    lost = went_on(half, undisturbed, broken=2)
    shows(f"resumed at 15, lost {lost} steps, {back_after(half, blow.at, broken=2):.1f} s to the next new step")
