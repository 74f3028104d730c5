"""Whole attempts on four real ranks (two nodes): what is saved comes back, bit for bit, or is refused."""

from __future__ import annotations

import hashlib
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from steelrail.checkpoints import fence
from steelrail.checkpoints.layout import LOCAL_COMMIT, MANIFEST, METADATA, StepId
from steelrail.checkpoints.manifest import decode, encode

ALONE = {"buddy": False}  # what one node holds is there once


def after(ranks: list[Any], step: int) -> dict[str, str]:
    """Losses of the steps after ``step``, as hexadecimal floats."""
    return {number: loss for number, loss in ranks[0]["losses"].items() if int(number) > step}


def errors(ranks: list[Any]) -> list[str]:
    return [rank["error"][0] for rank in ranks]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def flip_object(model: Any, which: StepId, name: str) -> None:
    key = model.store.key("run", model.key, "steps", which.folder, name)
    data = bytearray(model.store.get(key))
    data[len(data) // 2] ^= 1
    model.store.put(key, bytes(data))


def lose_disks(model: Any) -> None:
    for folder in model.nvme.iterdir():
        shutil.rmtree(folder)


def test_resumed_losses_are_those_of_the_undisturbed_run(model: Any) -> None:
    first = model.attempt(8, saves=[4], flush=20)
    again = model.attempt(8, spoil=True)
    assert [rank["flushed"] for rank in first] == [True] * 4
    assert [rank["restored"]["where"] for rank in again] == ["nvme"] * 4
    assert after(again, 0) == after(first, 4)


def test_nodes_without_their_disks_resume_from_the_store(model: Any) -> None:
    first = model.attempt(6, saves=[4], flush=20)
    lose_disks(model)
    again = model.attempt(6, spoil=True)
    found = again[3]["restored"]
    assert (found["step"], found["tokens"], found["where"]) == (4, 400, "store")
    assert found["extra"] == {"number": 4, "rate": 0.5, "name": "x"}
    assert found["rank_state"] == "state of 3"
    assert after(again, 0) == after(first, 4)


def test_four_ranks_resume_on_two_and_on_four_again(model: Any) -> None:
    first = model.attempt(8, saves=[3], flush=20)
    on_two = model.attempt(8, world=2, saves=[5], flush=20)
    on_four = model.attempt(8, spoil=True)
    assert [ranks[0]["restored"]["step"] for ranks in (on_two, on_four)] == [3, 5]
    assert on_two[0]["restored"]["rank_state"] is None
    for ranks in (on_two, on_four):
        for number, loss in ranks[0]["losses"].items():
            assert float.fromhex(loss) == pytest.approx(float.fromhex(first[0]["losses"][number]), abs=1e-5)


def test_damaged_file_on_nvme_is_fetched_again(model: Any) -> None:
    first = model.attempt(6, saves=[4], flush=20, settings=ALONE)
    flip(model.local(1) / StepId(4, 1).folder / "__3_0.distcp")
    again = model.attempt(6, spoil=True)
    assert again[0]["restored"]["where"] == "store"
    assert after(again, 0) == after(first, 4)


@pytest.mark.parametrize("name", ["__1_0.distcp", METADATA, MANIFEST])
def test_damaged_object_costs_one_checkpoint_and_is_named(model: Any, name: str) -> None:
    first = model.attempt(6, saves=[2, 4], flush=20)
    lose_disks(model)
    flip_object(model, StepId(4, 1), name)
    again = model.attempt(6, spoil=True)
    assert {rank["restored"]["step"] for rank in again} == {2}
    assert any(StepId(4, 1).folder in reason and name in reason for reason in again[1]["restored"]["reasons"])
    assert after(again, 0) == after(first, 2)


def test_missing_object_costs_one_checkpoint(model: Any) -> None:
    model.attempt(4, saves=[2, 4], flush=20)
    lose_disks(model)
    model.store.delete(model.store.key("run", model.key, "steps", StepId(4, 1).folder, "__2_0.distcp"))
    again = model.attempt(4)
    assert again[0]["restored"]["step"] == 2
    assert "__2_0.distcp is missing" in " ".join(again[0]["restored"]["reasons"])


def test_nothing_provable_is_an_error_and_never_step_0(model: Any) -> None:
    model.attempt(4, saves=[2, 4], flush=20)
    lose_disks(model)
    for step in (2, 4):
        flip_object(model, StepId(step, 1), "__0_0.distcp")
    again = model.attempt(4)
    assert errors(again) == ["CheckpointError"] * 4
    assert "some checkpoint must be provable" in again[0]["error"][1]
    assert [rank["losses"] for rank in again] == [{}] * 4


def test_all_manifests_gone_is_an_error(model: Any) -> None:
    model.attempt(2, saves=[2], flush=20)
    lose_disks(model)
    model.store.delete(model.store.key("run", model.key, "steps", StepId(2, 1).folder, MANIFEST))
    assert errors(model.attempt(2)) == ["CheckpointError"] * 4


def test_attempt_that_died_before_its_first_commit_starts_over(model: Any) -> None:
    model.attempt_of(fence.claim(model.store, "run", model.key), 3, kill=[1, 2])
    again = model.attempt(1)
    assert [rank["restored"] for rank in again] == [None] * 4
    assert fence.resumes(model.store, "run", model.key)[1].step == 0


def test_save_on_nvme_alone_is_resumed_and_uploaded_under_the_new_fence(model: Any) -> None:
    first = model.attempt(6, saves=[2, 4], break_store=True)
    assert model.folders() == []
    again = model.attempt(6, spoil=True, flush=20)
    assert {(r["restored"]["step"], r["restored"]["where"]) for r in again} == {(4, "nvme")}
    assert model.folders() == [StepId(4, 2).folder]
    assert after(again, 0) == after(first, 4)
    lose_disks(model)
    third = model.attempt(6, spoil=True)
    assert third[0]["restored"]["where"] == "store"
    assert after(third, 0) == after(first, 4)


def test_save_on_nvme_alone_comes_from_the_other_nodes_when_nodes_have_other_ranks(model: Any) -> None:
    first = model.attempt(6, saves=[4], break_store=True, settings=ALONE)
    again = model.attempt(6, spoil=True, nodes=[1, 0], flush=20)
    assert {(r["restored"]["step"], r["restored"]["where"]) for r in again} == {(4, "peer")}
    assert after(again, 0) == after(first, 4)
    lose_disks(model)
    assert after(model.attempt(6, spoil=True), 0) == after(first, 4)


def test_save_on_nvme_counts_only_with_every_nodes_part(model: Any) -> None:
    model.attempt(6, saves=[2], flush=20)
    model.attempt(6, saves=[4], break_store=True, settings=ALONE)
    shutil.rmtree(model.nvme / "node1")
    again = model.attempt(6)
    assert again[0]["restored"]["step"] == 2
    assert "not all of it on the present nodes" in " ".join(again[0]["restored"]["reasons"])


def test_damaged_save_on_nvme_alone_is_passed_over(model: Any) -> None:
    model.attempt(6, saves=[2], flush=20)
    model.attempt(6, saves=[4], break_store=True, settings=ALONE)
    flip(model.local(0) / StepId(4, 2).folder / "__0_0.distcp")
    assert model.attempt(6)[0]["restored"]["step"] == 2


def test_save_of_a_replaced_history_is_void(model: Any) -> None:
    model.attempt(6, saves=[2], flush=20)
    model.attempt(6, saves=[4], break_store=True, settings=ALONE)
    (model.nvme / "node1").rename(model.nvme / "away")
    model.attempt(3)
    shutil.rmtree(model.nvme / "node1")
    (model.nvme / "away").rename(model.nvme / "node1")
    again = model.attempt(6)
    assert again[0]["restored"]["step"] == 2
    assert "a later attempt resumed from before it" in " ".join(again[0]["restored"]["reasons"])


def test_save_that_fails_on_one_rank_counts_nowhere_and_training_goes_on(model: Any) -> None:
    ranks = model.attempt(6, saves=[2, 4], fill_nvme=[3, 2], flush=20)
    assert model.folders() == [StepId(4, 1).folder]
    assert [list(rank["losses"]) for rank in ranks] == [list("123456")] * 4
    assert sorted(path.name for path in model.local(0).iterdir()) == [StepId(4, 1).folder]
    notes = [data["text"] for rank in ranks for kind, data in rank["events"] if kind == "note"]
    assert len(notes) == 4
    assert "rank 3" in notes[0]
    assert "No space left" in notes[0]


def test_saves_that_fail_one_after_the_other_stop_the_run(model: Any) -> None:
    settings = {"max_behind": 2}
    ranks = model.attempt(9, saves=range_list(1, 9), fill_nvme=[3, *range_list(1, 9)], settings=settings)
    assert errors(ranks) == ["NodeError"] * 4
    assert "saves that failed in a row must be at most 2, is 3" in ranks[0]["error"][1]
    assert model.folders() == []


def test_attempt_that_was_overtaken_cannot_commit_and_ends(model: Any) -> None:
    ranks = model.attempt(4, saves=[4], slow_store=1.0, overtake=True, flush=20)
    assert errors(ranks) == ["BusyError"] * 4
    assert model.folders() == []


def test_attempt_that_slept_through_a_newer_ones_save_does_not_take_it_over(model: Any) -> None:
    slept, newer = (fence.claim(model.store, "run", model.key) for _ in range(2))
    model.attempt_of(newer, 3, saves=[2], break_store=True)
    assert errors(model.attempt_of(slept, 3)) == ["BusyError"] * 4
    assert [one.epoch for one in fence.resumes(model.store, "run", model.key)] == [newer]


def test_killed_rank_loses_no_acknowledged_checkpoint(model: Any) -> None:
    first = model.attempt(8, saves=[2], flush=20)
    dead = model.attempt_of(fence.claim(model.store, "run", model.key), 8, saves=[4, 5, 6], kill=[2, 6])
    assert dead[2] is None
    again = model.attempt(8, spoil=True)
    step = again[0]["restored"]["step"]
    assert step in (4, 5)
    assert after(again, 0) == after(first, step)


def test_store_that_stays_away_stops_the_run_after_its_save_on_nvme(model: Any) -> None:
    ranks = model.attempt(9, saves=range_list(1, 9), break_store=True, settings={"max_behind": 2})
    assert errors(ranks) == ["StoreError"] * 4
    assert [len(rank["losses"]) for rank in ranks] == [3] * 4
    assert "at most 2, is 3 (the store is away)" in ranks[2]["error"][1]
    assert model.attempt(4)[0]["restored"]["step"] == 3


def test_uploads_that_are_overtaken_are_left_out_by_all_nodes_alike(model: Any) -> None:
    ranks = model.attempt(6, saves=range_list(1, 6), slow_store=0.3, settings={"max_behind": 9}, flush=30)
    durable = [data["step"] for kind, data in ranks[0]["events"] if kind == "durable" and data["where"] == "store"]
    assert ranks[0]["flushed"]
    assert durable[-1] == 6
    assert len(durable) < 6
    assert durable == sorted(durable)


def test_only_the_newest_checkpoints_are_kept(model: Any) -> None:
    for step in range(1, 5):
        ranks = model.attempt(step, saves=[step], settings={"keep_last": 2}, flush=20)
    assert ranks[0]["durable"] == 4
    assert model.folders() == [StepId(3, 3).folder, StepId(4, 4).folder]
    committed = [path.parent.name for path in model.local(1).glob(f"*/{LOCAL_COMMIT}")]
    assert sorted(committed) == [StepId(3, 3).folder, StepId(4, 4).folder]


def test_saving_twice_at_one_step_is_one_checkpoint(model: Any) -> None:
    ranks = model.attempt(2, saves=[2], save_again=True, flush=20)
    assert [kind for kind, _ in ranks[1]["events"]] == ["save"]
    assert model.folders() == [StepId(2, 1).folder]


def test_malicious_metadata_is_refused_even_with_a_forged_manifest(model: Any, tmp_path: Path) -> None:
    first = model.attempt(4, saves=[2, 4], flush=20)
    lose_disks(model)
    forge(model, StepId(4, 1), Bomb(tmp_path / "ran"))
    again = model.attempt(4)
    assert not (tmp_path / "ran").exists()
    assert again[0]["restored"]["step"] == 2
    assert "has no place in a checkpoint" in " ".join(again[0]["restored"]["reasons"])
    assert after(again, 0) == after(first, 2)


@pytest.mark.parametrize("how", ["DONE", "SAVED_ON_SIGNAL"])
def test_last_save_that_writes_longer_than_a_flush_slice_becomes_durable(model: Any, how: str) -> None:
    ranks = model.attempt(4, saves=[4], slow_nvme=[2, 1.5], last_flush=how)
    assert [(rank.get("error"), rank["durable"]) for rank in ranks] == [(None, 4)] * 4
    assert model.folders() == [StepId(4, 1).folder]
    assert min(rank["beats"] for rank in ranks) >= 5


def test_last_save_that_is_not_written_in_the_lead_fails_and_is_no_end_of_the_run(model: Any) -> None:
    ranks = model.attempt(4, saves=[4], slow_nvme=[2, 4.0], last_flush="SAVED_ON_SIGNAL", lead=2)
    assert errors(ranks) == ["TrainError"] * 4
    assert "last save must be written in time" in ranks[0]["error"][1]


def test_restore_and_waits_for_a_stalled_save_give_signs_of_life(model: Any) -> None:
    first = model.attempt(4, saves=[2, 3], slow_nvme=[1, 1.5], flush=20)
    assert min(rank["beats"] for rank in first) >= 5
    lose_disks(model)
    again = model.attempt(4, spoil=True)
    assert min(rank["restore_beats"] for rank in again) >= 2


@pytest.mark.parametrize("where", ["files_needed", "sha256_file", "read_data", "read_metadata"])
def test_fault_of_one_rank_is_no_evidence_against_the_newest_checkpoint(model: Any, where: str) -> None:
    first = model.attempt(6, saves=[2, 4], flush=20)
    failed = model.attempt(6, spoil=True, fail_restore=[3, where])
    assert errors(failed) == ["RankError"] * 4
    assert {rank["culprit"] for rank in failed} == {"host1"}
    assert "rank 3: " in failed[0]["error"][1]
    again = model.attempt(6, spoil=True)
    assert {rank["restored"]["step"] for rank in again} == {4}
    assert after(again, 0) == after(first, 4)


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def forge(model: Any, which: StepId, bomb: Bomb) -> None:
    """Put a bomb in place of a checkpoint's metadata, with a manifest that proves it."""
    key = model.store.key("run", model.key, "steps", which.folder, MANIFEST)
    manifest, data = decode(model.store.get(key), key), pickle.dumps(bomb)
    forged = [
        file.model_copy(update={"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
        if file.name == METADATA
        else file
        for file in manifest.files
    ]
    model.store.put(model.store.key("run", model.key, "steps", which.folder, METADATA), data)
    model.store.put(key, encode(manifest.model_copy(update={"files": tuple(forged)})))


def range_list(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))
