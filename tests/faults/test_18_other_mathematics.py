"""Row 18: settings or data that change the mathematics, under one name: another key beside the old, never mixed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import servers
from restarts import Blow, at_step, back_after, went_on
from runs import NAME, STEPS, WAIT_SECONDS, Case, Curve, pace, until

STAYS_AT = 17
OTHER_ROWS = 60  # of the sample; the other runs have 100


def digests(case: Case, key: str) -> dict[str, str]:
    """Return the SHA-256 of everything that a key has: its objects in the store, its files in results and on NVMe."""
    old = case.of(key)
    found = {f"store {name}": hashlib.sha256(old.read(name)).hexdigest() for name in old.objects()}
    folders = [old.root.root, *(case.folder / "nvme").glob(f"steelrail-*/*/*/{key}")]
    for path in (one for folder in folders for one in folder.rglob("*") if one.is_file()):
        found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def other_learning_rate(case: Case) -> None:
    case.settings["train"]["optimizer"]["learning_rate"] = 0.006


def other_data(case: Case) -> None:
    """Make the run's data anew from another corpus, as a user does; what the old key learned from must stay."""
    corpus = case.folder / "other.parquet"
    pq.write_table(pq.read_table(servers.PROJECT / "data" / "sample.parquet").slice(100, OTHER_ROWS), corpus)
    case.settings["corpus"] = {"paths": [str(corpus)]}
    for words in (("corpus",), ("shards", "part", "--part", "0"), ("shards", "gather")):
        done = case.train(*words)
        assert done.code == 0, done.said


CHANGES = {"learning rate": other_learning_rate, "data": other_data}


def manifest_of(case: Case) -> Path:
    return case.folder / "results" / NAME / "shards" / "manifest.json"


@pytest.mark.row(18, "resume")
@pytest.mark.parametrize("what", [pytest.param(one, id=one.replace(" ", "_")) for one in CHANGES])
def test_another_model_is_refused_beside_a_living_job_then_trained_beside_the_old_which_can_be_resumed(
    what: str, case: Case, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    settings, manifest = {**case.settings}, manifest_of(case).read_bytes()
    case.settings["drills"].append({"kind": "wait", "seconds": 250.0, "at_step": STAYS_AT, "attempt": 1})
    driver = case.begin()
    at_step(case, 1, STAYS_AT - 1)
    until(lambda: 15 in case.durable(1), WAIT_SECONDS, "the checkpoint of step 15 is in the store")
    (old,) = case.models()
    # Its job goes on without it.
    driver.kill()
    driver.wait()
    case.settings["train"] = {**case.settings["train"], "optimizer": {**case.settings["train"]["optimizer"]}}
    CHANGES[what](case)
    refused = case.train()
    assert refused.code == 10, refused.said
    assert f"live job of run {NAME} must be of key " in refused.said
    assert f"is {old} (" in refused.said
    assert case.models() == [old]
    case.kill()
    before = digests(case, old)
    case.settings["drills"] = pace(0.1)
    done = case.train()
    assert done.code == 0, done.said
    assert digests(case, old) == before
    (new,) = set(case.models()) - {old}
    other = case.of(new)
    assert (other.resumed(1), other.steps(1)) == (None, list(range(1, STEPS + 1)))
    differing = [step for step, made in other.curve().items() if made != undisturbed[step]]
    assert len(differing) >= STEPS - 1
    between = digests(case, new)
    case.settings["train"], case.settings["corpus"] = settings["train"], settings["corpus"]
    manifest_of(case).write_bytes(manifest)
    again = case.train()
    assert again.code == 0, again.said
    first = case.of(old)
    assert (first.resumed(2), first.curve()) == (15, undisturbed)
    assert digests(case, new) == between
    shows(
        f"refused with exit code 10 after {refused.seconds:.1f} s; then a key of its own from step 0, {len(before)} "
        f"files and objects of the old one unchanged; old settings again: resumed at 15"
    )


@pytest.mark.row(18, "step")
def test_a_job_that_restarts_once_the_runs_data_are_others_goes_on_with_its_own(
    case: Case, undisturbed: Curve, shows: Callable[[str], None]
) -> None:
    case.settings["drills"].append({"kind": "wait", "seconds": 250.0, "at_step": STAYS_AT, "attempt": 1})
    driver = case.begin()
    at_step(case, 1, STAYS_AT - 1)
    other_data(case)
    blow = Blow(case, 1, 0)
    blow()
    done = case.finish(driver)
    assert done.code == 0, done.said
    lost = went_on(case, undisturbed)
    shows(f"resumed at {case.resumed(2)}, lost {lost} steps, {back_after(case, blow.at):.1f} s to the next new step")
