"""Row 11, while a run trains, starts and loads: nothing that passes changes its result, or costs it a step."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from proxy import Fault, Proxy
from runs import STEPS, Case, Curve, pace, until
from servers import Server

STALL_SECONDS = 4.0  # longer than the run's time-out of one request


def all_went_well(case: Case, undisturbed: Curve, attempts: int = 1) -> None:
    """One job, no attempt more than expected, every loss as undisturbed, the last checkpoint in the store."""
    assert case.curve() == undisturbed
    assert case.attempts() == attempts
    assert case.endings()[-1] == "done"
    assert int(case.committed()[-1].split("-")[0]) == STEPS
    # Whatever was repeated, nothing is left half-done.
    assert case.unfinished() == []


def back_after(case: Case, moment: float) -> float:
    """Return the seconds from ``moment`` (Unix) to the next checkpoint that became durable."""
    times = [event.time for event in case.events(1, "durable") if event.data["where"] == "store"]
    return min(time for time in times if time > moment) - moment


@pytest.mark.row(11, "upload and commit")
def test_each_fault_that_passes_is_repeated_and_training_goes_on(
    case: Case, proxy: Proxy, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    # Another request of another checkpoint each: files, receipts, manifests, and what is asked before those.
    befallen = [
        proxy.add(Fault("answer", verb="put", key="0000000005-00000001/__0_0.distcp", times=3)),
        proxy.add(Fault("reset-after", verb="put", key="0000000005-00000001/manifest.json")),
        proxy.add(Fault("stall", verb="put", key="0000000010-00000001/__1_0.distcp", seconds=STALL_SECONDS)),
        proxy.add(Fault("reset", verb="put", key="0000000010-00000001/manifest.json", times=2)),
        proxy.add(Fault("flip-up", verb="put", key="0000000015-00000001/__0_0.distcp")),
        proxy.add(Fault("truncate", verb="get", key="0000000015-00000001/node-00000.json")),
        proxy.add(Fault("reset-after", verb="put", key="0000000020-00000001/__1_0.distcp")),
        proxy.add(Fault("stall", verb="put", key="0000000020-00000001/manifest.json", seconds=STALL_SECONDS)),
        proxy.add(Fault("truncate", verb="list", key="/fence/", skip=6, times=2)),
        proxy.add(
            Fault("answer", verb="put", key="0000000030-00000001/manifest.json", status=500, code="InternalError")
        ),
    ]
    # Each upload is over before the next save is, or it would be overtaken and not meet its fault.
    case.settings["drills"] = pace(0.3)
    case.settings["store"]["timeout_seconds"] = 1.0
    done = case.train()
    assert done.code == 0, done.said
    all_went_well(case, undisturbed)
    happened = sum(len(fault.met) for fault in befallen)
    assert happened >= 12
    stalls = [event.data["stall_seconds"] for event in case.events(1, "save")]
    shows(f"{happened} faults, lost 0 steps; a save held training up for {max(stalls):.2f} s at most")


@pytest.mark.row(11, "start")
def test_faults_that_pass_at_the_start_are_repeated(
    case: Case, proxy: Proxy, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    befallen = [
        proxy.add(Fault("answer", verb="list", times=2)),
        proxy.add(Fault("reset-after", verb="put", key="/probe/")),
        proxy.add(Fault("truncate", verb="get", key="/probe/")),
        proxy.add(Fault("reset-after", verb="put", key="/fence/00000001.json")),
        proxy.add(Fault("reset-after", verb="put", key="/fence/00000001.resume.json")),
        proxy.add(Fault("truncate", verb="get", key=".train.arrow")),
        proxy.add(Fault("stall-in-body", verb="get", key=".train.arrow", seconds=STALL_SECONDS)),
        proxy.add(Fault("flip", verb="get", key=".train.arrow")),
    ]
    done = case.train()
    assert done.code == 0, done.said
    all_went_well(case, undisturbed)
    assert [1] * 7 == [len(fault.met) for fault in befallen[1:]]
    # The fence whose answer was lost is ours: no second one was claimed.
    assert [name for name in case.objects("fence/") if len(name) == len("fence/00000001.json")] == [
        "fence/00000001.json"
    ]
    shows(f"{sum(len(fault.met) for fault in befallen)} faults, lost 0 steps, one attempt, one fence")


@pytest.mark.row(11, "load")
def test_faults_that_pass_while_a_checkpoint_is_loaded_cost_no_step(
    half: Case, proxy: Proxy, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    newest = "0000000015-00000001"
    befallen = [
        proxy.add(Fault("truncate", verb="list", key="/steps/")),
        proxy.add(Fault("answer", verb="list", key="/steps/", times=2)),
        proxy.add(Fault("reset", verb="get", key=f"{newest}/manifest.json")),
        proxy.add(Fault("truncate", verb="get", key=f"{newest}/.metadata")),
        proxy.add(Fault("truncate", verb="get", key=f"{newest}/__0_0.distcp", times=2)),
        proxy.add(Fault("stall-in-body", verb="get", key=f"{newest}/__1_0.distcp", seconds=STALL_SECONDS)),
        proxy.add(Fault("reset-after", verb="put", key="/fence/00000002.resume.json")),
    ]
    done = half.train()
    assert done.code == 0, done.said
    assert half.resumed(2) == 15
    all_went_well(half, undisturbed, attempts=2)
    assert all(fault.met for fault in befallen)
    restored = half.events(2, "restore")[0].data["seconds"]
    shows(f"{sum(len(one.met) for one in befallen)} faults, resumed at 15 as without, restore took {restored:.1f} s")


KILLS = {
    "upload": Fault("pass", verb="put", key="0000000010-00000001/__1_0.distcp"),
    "before the manifest": Fault("pass", verb="put", key="0000000010-00000001/manifest.json"),
    "after the manifest": Fault("reset-after", verb="put", key="0000000010-00000001/manifest.json"),
}


@pytest.mark.row(11, "server killed and restarted")
@pytest.mark.parametrize("moment", KILLS)
def test_a_server_killed_and_restarted_costs_no_step_and_no_checkpoint(
    moment: str, case: Case, server: Server, proxy: Proxy, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    case.settings["store"]["retry_seconds"] = 120.0
    case.settings["checkpoints"]["max_behind"] = 10
    kept = KILLS[moment]
    fault = proxy.add(Fault(kept.kind, kept.verb, kept.key))
    if moment != "after the manifest":
        fault.then = server.kill
    driver, back = case.begin(), 0.0
    try:
        assert fault.happened.wait(600)
        if moment == "after the manifest":
            until(lambda: proxy.count("put", fault.key) or fault.met, 60, "the manifest is put")
            server.kill()
        time.sleep(3.0)
    finally:
        server.start()
        back = time.time()
    done = case.finish(driver)
    assert done.code == 0, done.said
    all_went_well(case, undisturbed)
    shows(f"lost 0 steps; durable {back_after(case, back):.1f} s after the server was back")


@pytest.mark.row(11, "server killed and restarted")
def test_a_server_killed_while_a_checkpoint_is_loaded_costs_no_step(
    half: Case, server: Server, proxy: Proxy, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    half.settings["store"]["retry_seconds"] = 120.0
    fault = proxy.add(Fault("pass", verb="get", key="0000000015-00000001/__1_0.distcp", then=server.kill))
    driver = half.begin()
    try:
        assert fault.happened.wait(600)
        time.sleep(2.0)
    finally:
        server.start()
        back = time.time()
    done = half.finish(driver)
    assert done.code == 0, done.said
    assert half.resumed(2) == 15
    all_went_well(half, undisturbed, attempts=2)
    shows(f"resumed at 15; first step {half.events(2, 'step')[0].time - back:.1f} s after the server was back")


@pytest.mark.row(11, "slow link")
def test_over_a_slow_link_a_checkpoint_is_loaded_whole(
    half: Case, proxy: Proxy, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    proxy.add(Fault("slow", verb="get", key=".distcp", times=float("inf"), rate=500_000.0))
    done = half.train()
    assert done.code == 0, done.said
    assert half.resumed(2) == 15
    all_went_well(half, undisturbed, attempts=2)
    shows(f"0.5 MB/s: restore of 6.8 MB took {half.events(2, 'restore')[0].data['seconds']:.1f} s")
