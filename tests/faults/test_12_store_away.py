"""Row 12: the store is down for longer than the run's patience. Clear errors, in time; never from scratch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from proxy import Fault, Proxy
from runs import STEPS, Case, Curve

BEHIND = 2


@pytest.fixture
def impatient(case: Case) -> Case:
    """A run that gives a failing call up after two seconds."""
    case.settings["store"] |= {"timeout_seconds": 2.0, "retry_seconds": 2.0}
    return case


@pytest.mark.quick
@pytest.mark.row(12, "start")
def test_a_store_that_is_down_stops_the_run_before_it_begins(
    impatient: Case, proxy: Proxy, shows: Callable[[str], None]
) -> None:
    proxy.close_door()
    done = impatient.train()
    assert done.code == 5, done.said
    assert "store must be reachable, is not reachable for" in done.said
    assert proxy.url in done.said
    assert impatient.attempts() == 0
    shows(f"exit code 5 after {done.seconds:.1f} s, nothing submitted")


STARTS = {
    "fence": Fault("pass", verb="list", key="/fence/"),
    "the ranks' probe": Fault("pass", verb="put", key="/probe/", skip=2),
    "stage in": Fault("pass", verb="get", key=".train.arrow"),
}


@pytest.mark.row(12, "start")
@pytest.mark.parametrize("moment", STARTS)
def test_a_store_that_goes_down_while_an_attempt_starts_ends_it_with_that_reason(
    moment: str, impatient: Case, proxy: Proxy, shows: Callable[[str], None]
) -> None:
    kept = STARTS[moment]
    fault = proxy.add(Fault(kept.kind, kept.verb, kept.key, skip=kept.skip, then=proxy.close_door))
    done = impatient.train()
    assert fault.met, done.said
    assert done.code == 5, done.said
    assert "not reachable for" in done.said
    assert impatient.attempts() == 1
    assert impatient.steps(1) == []
    shows(f"exit code 5 after {done.seconds:.1f} s, one attempt, no step")


@pytest.mark.row(12, "save")
def test_training_goes_on_from_nvme_for_so_many_saves_then_stops_and_loses_nothing(
    impatient: Case, proxy: Proxy, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    impatient.settings["checkpoints"]["max_behind"] = BEHIND
    proxy.add(Fault("pass", verb="put", key="0000000010-00000001/__0_0.distcp", then=proxy.close_door))
    stopped = impatient.train()
    assert stopped.code == 5, stopped.said
    assert f"saves that wait for the store must be at most {BEHIND}, is {BEHIND + 1}" in stopped.said
    assert impatient.durable(1) == [5]
    assert impatient.saved(1) == [5, 10, 15, 20]
    assert "upload of step" in impatient.notes(1)
    last = max(impatient.steps(1))
    proxy.open_door()
    done = impatient.train()
    assert done.code == 0, done.said
    assert impatient.resumed(2) == 20
    assert impatient.curve() == undisturbed
    shows(f"{BEHIND} saves beyond the last durable one, then exit code 5; run again: lost {last - 20} steps, from NVMe")


@pytest.mark.row(12, "last save")
def test_a_run_is_not_done_before_its_last_checkpoint_is_in_the_store(
    impatient: Case, proxy: Proxy, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    impatient.settings["store"]["retry_seconds"] = 1.0
    proxy.add(Fault("pass", verb="put", key=f"{STEPS:010d}-00000001/__0_0.distcp", then=proxy.close_door))
    stopped = impatient.train()
    assert stopped.code == 5, stopped.said
    assert "last checkpoint must be in the store, is not (store must be reachable, is not reachable" in stopped.said
    assert not (impatient.folder / "results" / "faults" / "train" / "record.json").exists()
    proxy.open_door()
    done = impatient.train()
    assert done.code == 0, done.said
    assert impatient.resumed(2) == STEPS
    assert impatient.steps(2) == []
    assert impatient.curve() == undisturbed
    assert int(impatient.committed()[-1].split("-")[0]) == STEPS
    shows(f"exit code 5 after {stopped.seconds:.0f} s; run again: uploaded from NVMe, 0 steps made again")


LOADS = {
    "survey": Fault("pass", verb="list", key="/steps/"),
    "manifest": Fault("pass", verb="get", key="0000000015-00000001/manifest.json"),
    "file": Fault("pass", verb="get", key="0000000015-00000001/__1_0.distcp"),
    "resume record": Fault("pass", verb="put", key="/fence/00000002.resume.json"),
}


@pytest.mark.row(12, "load")
@pytest.mark.parametrize("moment", LOADS)
def test_a_store_that_goes_down_while_a_checkpoint_is_loaded_is_no_reason_to_take_an_older_one(
    moment: str, half: Case, proxy: Proxy, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    half.settings["store"] |= {"timeout_seconds": 2.0, "retry_seconds": 2.0}
    kept = LOADS[moment]
    fault = proxy.add(Fault(kept.kind, kept.verb, kept.key, then=proxy.close_door))
    stopped = half.train()
    assert fault.met, stopped.said
    assert stopped.code == 5, stopped.said
    assert "not reachable for" in stopped.said
    assert half.steps(2) == []
    proxy.open_door()
    done = half.train()
    assert done.code == 0, done.said
    assert half.resumed(3) == 15
    assert half.curve() == undisturbed
    shows(f"exit code 5 after {stopped.seconds:.0f} s, no step; run again: resumed at 15")
