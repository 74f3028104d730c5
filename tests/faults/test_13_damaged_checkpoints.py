"""Rows 13 and 14: checkpoints in the store that are not what they were, when a run is resumed from there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from proxy import Fault, Proxy, flipped
from runs import STEPS, Case, Curve

NEWEST, BEFORE = 15, 10


def damage(case: Case, step: int, name: str, change: Callable[[bytes], bytes | None]) -> None:
    """Change one object of a checkpoint, at the server."""
    folder = next(one for one in case.committed() if int(one.split("-")[0]) == step)
    at = f"steps/{folder}/{name}"
    case.write(at, change(case.read(at)))


def halved(data: bytes) -> bytes:
    return data[: len(data) // 2]


def gone(data: bytes) -> None:
    """Nothing is left."""


# What is done to the newest checkpoint, and what is said of it.
DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes | None], str]] = {
    "flipped bit": ("__1_0.distcp", flipped, "SHA-256 must be"),
    "flipped bit in the metadata": (".metadata", flipped, "SHA-256 must be"),
    "truncated": ("__0_0.distcp", halved, "__0_0.distcp has"),
    "missing object": ("__0_0.distcp", gone, "__0_0.distcp is missing"),
    "torn manifest": ("manifest.json", halved, "manifest must be whole and valid, is torn"),
}


def resumed_from(case: Case, step: int, undisturbed: Curve, shows: Callable[[str], None]) -> None:
    """Train to the end; the second attempt went on from ``step``, and every loss is what it would have been."""
    done = case.train()
    assert done.code == 0, done.said
    assert case.resumed(2) == step
    assert case.curve() == undisturbed
    first, restored = case.events(2, "step")[0], case.events(2, "restore")[0]
    lost = max(case.steps(1)) - step
    shows(
        f"lost {lost} steps, restored in {restored.data['seconds']:.1f} s, {first.time - case.begun(2):.1f} s to step"
    )


@pytest.mark.row(13, "load")
@pytest.mark.parametrize(
    "kind", [pytest.param(one, marks=[pytest.mark.quick] * (one == "flipped bit")) for one in DAMAGE]
)
def test_a_damaged_checkpoint_is_told_and_the_one_before_is_taken(
    kind: str, half: Case, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    name, change, said = DAMAGE[kind]
    damage(half, NEWEST, name, change)
    resumed_from(half, BEFORE, undisturbed, shows)
    assert said in half.log(2)


@pytest.mark.row(13, "load")
def test_a_byte_that_changes_on_the_way_costs_no_checkpoint(
    half: Case, proxy: Proxy, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    fault = proxy.add(Fault("flip", verb="get", key="0000000015-00000001/__1_0.distcp"))
    resumed_from(half, NEWEST, undisturbed, shows)
    assert len(fault.met) == 1


@pytest.mark.row(13, "load")
def test_a_link_that_changes_the_same_byte_always_is_evidence_against_the_checkpoint(
    half: Case, proxy: Proxy, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    proxy.add(Fault("flip", verb="get", key="0000000015-00000001/__1_0.distcp", times=float("inf")))
    resumed_from(half, BEFORE, undisturbed, shows)


@pytest.mark.row(14, "load")
@pytest.mark.parametrize("how", ["flipped", "missing", "everything gone"])
def test_without_one_checkpoint_that_can_be_proved_the_run_stops_and_says_so(
    how: str, half: Case, shows: Callable[[str], None]
) -> None:
    if how == "flipped":
        for step in (5, 10, NEWEST):
            damage(half, step, "__0_0.distcp", flipped)
    else:
        for name in half.objects("steps/" if how == "missing" else ""):
            half.write(name, None)
    done = half.train()
    assert done.code == 11, done.said
    assert "some checkpoint must be provable, is none" in done.said
    assert half.steps(2) == []
    # Nor at the next try, by whoever did not read.
    assert half.train().code == 11
    assert STEPS not in half.curve()
    shows(f"exit code 11 after {done.seconds:.0f} s; no step made")
