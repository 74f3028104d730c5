"""Second copies on the next node: whole attempts on real ranks of two nodes and more, and the copying thread alone."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from steelrail.checkpoints import buddy
from steelrail.checkpoints.buddy import Copier, Copies, newest_held, soon_held
from steelrail.checkpoints.layout import LOCAL_COMMIT, METADATA, StepId
from steelrail.checkpoints.manifest import CheckpointFile, Manifest
from steelrail.clients.peers import PeerError

A, B, C = StepId(2, 1), StepId(4, 1), StepId(6, 1)


def after(ranks: list[Any], step: int) -> dict[str, str]:
    return {number: loss for number, loss in ranks[0]["losses"].items() if int(number) > step}


def said(ranks: list[Any], kind: str) -> list[dict[str, Any]]:
    return [data for rank in ranks for name, data in rank["events"] if name == kind]


def read(ranks: list[Any]) -> dict[str, int]:
    """Bytes of a restore, by source, over all ranks."""
    return {name: sum(data["bytes"][name] for data in said(ranks, "restore")) for name in ("nvme", "peer", "store")}


def size_of(model: Any, which: StepId, node: int, *ranks: int) -> int:
    folder = model.local(node) / which.folder
    return sum((folder / f"__{rank}_0.distcp").stat().st_size for rank in ranks)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_every_node_holds_its_own_files_and_those_of_the_node_before_it(model: Any) -> None:
    ranks = model.attempt(4, world=6, saves=[4], flush=20, await_copied=4)
    for node, held in {0: (0, 1, 4, 5), 1: (0, 1, 2, 3), 2: (2, 3, 4, 5)}.items():
        files = {path.name for path in (model.local(node) / StepId(4, 1).folder).iterdir()}
        assert files == {LOCAL_COMMIT, METADATA, *(f"__{rank}_0.distcp" for rank in held)}
    copied = said(ranks, "copied")
    assert [(one["step"], one["epoch"], one["of"]) for one in copied] == [(4, 1, f"host{node}") for node in (2, 0, 1)]
    assert copied[1]["bytes"] == size_of(model, StepId(4, 1), 1, 0, 1)


def test_dead_node_without_the_store_costs_nothing(model: Any) -> None:
    first = model.attempt(6, saves=[2, 4], break_store=True, await_copied=4)
    lost = size_of(model, StepId(4, 1), 1, 2, 3)
    shutil.rmtree(model.nvme / "node1")
    again = model.attempt(6, spoil=True, nodes=[0, 2], flush=20)
    assert {(rank["restored"]["step"], rank["restored"]["where"]) for rank in again} == {(4, "peer")}
    assert (read(again)["peer"], read(again)["store"]) == (lost, 0)
    assert after(again, 0) == after(first, 4)
    assert model.folders() == [StepId(4, 2).folder]
    shutil.rmtree(model.nvme)
    assert after(model.attempt(6, spoil=True), 0) == after(first, 4)


def test_dead_nodes_files_come_from_its_buddy_though_the_store_has_them(model: Any) -> None:
    first = model.attempt(6, world=6, saves=[4], flush=20, await_copied=4)
    shutil.rmtree(model.nvme / "node1")
    # As Slurm orders them: the node after the lost one moves up, the spare comes last.
    again = model.attempt(6, world=6, nodes=[0, 2, 3], spoil=True)
    assert {rank["restored"]["step"] for rank in again} == {4}
    assert read(again)["store"] == 0
    assert read(again)["peer"] == size_of(model, StepId(4, 1), 3, 4, 5)
    assert after(again, 0) == after(first, 4)


def test_replaced_node_gets_its_copies_again(model: Any) -> None:
    model.attempt(4, saves=[4], break_store=True, await_copied=4)
    shutil.rmtree(model.nvme / "node0")
    model.attempt(4, nodes=[2, 1], await_copied=4, break_store=True)
    shutil.rmtree(model.nvme / "node1")
    again = model.attempt(4, nodes=[2, 3])
    assert (again[0]["restored"]["step"], again[0]["restored"]["where"]) == (4, "peer")


def test_damaged_file_comes_from_the_buddy(model: Any) -> None:
    first = model.attempt(6, saves=[4], flush=20, await_copied=4)
    flip(model.local(1) / StepId(4, 1).folder / "__3_0.distcp")
    again = model.attempt(6, spoil=True)
    assert {rank["restored"]["where"] for rank in again} == {"peer"}
    assert after(again, 0) == after(first, 4)


def test_damaged_copy_on_the_buddy_is_passed_over_for_the_store(model: Any) -> None:
    first = model.attempt(6, saves=[4], flush=20, await_copied=4)
    shutil.rmtree(model.nvme / "node1")
    flip(model.local(0) / StepId(4, 1).folder / "__3_0.distcp")
    again = model.attempt(6, nodes=[0, 2], spoil=True)
    assert {(rank["restored"]["step"], rank["restored"]["where"]) for rank in again} == {(4, "store")}
    assert [read(again)[name] for name in ("peer", "store")] == [
        size_of(model, StepId(4, 1), 2, rank) for rank in (2, 3)
    ]
    assert after(again, 0) == after(first, 4)


def test_save_whose_copies_are_all_damaged_is_passed_over(model: Any) -> None:
    model.attempt(6, saves=[2], flush=20)
    model.attempt(6, saves=[4], break_store=True, await_copied=4)
    for node in (0, 1):
        flip(model.local(node) / StepId(4, 2).folder / "__0_0.distcp")
    again = model.attempt(6)
    assert again[0]["restored"]["step"] == 2
    assert "file must be whole on some node" in " ".join(again[0]["restored"]["reasons"])


def test_peer_that_cannot_be_asked_is_no_evidence_against_the_newest_save(model: Any) -> None:
    first = model.attempt(6, saves=[2], flush=20)
    model.attempt(6, saves=[4], break_store=True, await_copied=4)
    shutil.rmtree(model.nvme / "node1")
    failed = model.attempt(6, nodes=[0, 2], deaf=[0])
    assert [rank["error"][0] for rank in failed] == ["RankError"] * 4
    assert "node host0 must be able to send its file" in failed[0]["error"][1]
    again = model.attempt(6, nodes=[0, 2], spoil=True)
    assert again[0]["restored"]["step"] == 4
    assert after(again, 0) == after(first, 4)


def test_network_that_changes_bytes_is_no_evidence_against_the_newest_save(model: Any) -> None:
    first = model.attempt(6, saves=[2], flush=20)
    model.attempt(6, saves=[4], break_store=True, await_copied=4)
    shutil.rmtree(model.nvme / "node1")
    failed = model.attempt(6, nodes=[0, 2], garble=[1])
    assert [rank["error"][0] for rank in failed] == ["RankError"] * 4
    assert {rank["culprit"] for rank in failed} == {"host2"}
    assert "changed on the way each time" in failed[0]["error"][1]
    again = model.attempt(6, nodes=[0, 2], spoil=True)
    assert again[0]["restored"]["step"] == 4
    assert after(again, 0) == after(first, 4)


def test_buddy_that_is_away_costs_the_copy_and_not_the_save(model: Any) -> None:
    ranks = model.attempt(4, saves=[2, 4], deaf=[0], flush=20, await_copied=4)
    assert [rank["durable"] for rank in ranks] == [4] * 4
    assert [data["of"] for data in said(ranks, "copied") if data["step"] == 4] == ["host1"]
    notes = [data["text"] for data in said(ranks, "note")]
    assert any("no second copy of step 4 of host0; training goes on" in note for note in notes)


def test_without_the_setting_there_is_one_copy(model: Any) -> None:
    ranks = model.attempt(4, saves=[4], flush=20, settings={"buddy": False}, await_copied=4)
    assert said(ranks, "copied") == []
    assert not (model.local(1) / StepId(4, 1).folder / "__0_0.distcp").exists()


def test_one_node_has_no_buddy(model: Any) -> None:
    ranks = model.attempt(4, world=2, saves=[4], flush=20, await_copied=4)
    assert said(ranks, "copied") == said(ranks, "note") == []


def test_what_several_nodes_need_is_read_from_the_store_once(model: Any) -> None:
    model.attempt(6, world=4, saves=[4], flush=20, await_copied=4)
    total = size_of(model, StepId(4, 1), 0, 0, 1, 2, 3)
    # Twelve rows and seven, in four files, on six ranks of three nodes: two nodes need each file but the first.
    shared = size_of(model, StepId(4, 1), 0, 1, 2, 3)
    metadata = (model.local(0) / StepId(4, 1).folder / METADATA).stat().st_size
    shutil.rmtree(model.nvme)
    again = model.attempt(6, world=6, spoil=True)
    assert {rank["restored"]["where"] for rank in again} == {"store"}
    assert read(again) == {"nvme": 0, "peer": shared, "store": total + metadata}


def test_newest_save_that_is_there_twice_is_kept_until_a_newer_one_is(model: Any) -> None:
    model.attempt(2, saves=[2], break_store=True, await_copied=2)
    ranks = model.attempt(8, saves=[4, 6, 8], deaf=[0], break_store=True, settings={"max_behind": 9}, await_copied=8)
    assert all("error" not in rank for rank in ranks)
    shutil.rmtree(model.nvme / "node0")
    assert model.attempt(8, nodes=[2, 1])[0]["restored"]["step"] == 2


def test_save_that_was_taken_over_is_not_safe_before_it_is_there_twice(model: Any) -> None:
    model.attempt(4, saves=[2], break_store=True, await_copied=2)
    model.attempt(4, saves=[4], deaf=[0, 1], break_store=True, await_copied=4)
    ranks = model.attempt(8, saves=[6, 8], deaf=[0, 1], break_store=True, settings={"max_behind": 9}, await_copied=8)
    assert [rank["restored"]["step"] for rank in ranks] == [4] * 4
    shutil.rmtree(model.nvme / "node0")
    assert model.attempt(8, nodes=[2, 1])[0]["restored"]["step"] == 2


def manifest(which: StepId) -> Manifest:
    files = [
        CheckpointFile(name=f"__{node}_0.distcp", size_bytes=4, sha256="", rank=node, node_rank=node, host=f"h{node}")
        for node in range(2)
    ]
    return Manifest(
        run="run",
        key="key",
        step=which.step,
        epoch=which.epoch,
        tokens=0,
        world_size=2,
        num_nodes=2,
        files=tuple(files),
        parent_step=None,
        parent_epoch=None,
        created=0.0,
        versions={},
        extra={},
    )


class Thread:
    """A copier of node 1 whose peer does as ``answers`` say: true or false, an error, or an event to wait for."""

    def __init__(self, home: Path, *answers: Any) -> None:
        self.answers, self.asked, self.events = list(answers), [], []
        peers: Any = SimpleNamespace(ward=0, node_rank=1, nodes=[SimpleNamespace(host="h0")], fetch=self.fetch)
        place: Any = Home(home)
        self.copier = Copier(place, peers, self.emit)

    def fetch(self, node_rank: int, home: Any, which: StepId, file: CheckpointFile) -> bool:
        self.asked.append((node_rank, which, file.name))
        answer = self.answers.pop(0)
        if isinstance(answer, threading.Event):
            return answer.wait(10)
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    def emit(self, kind: str, **data: Any) -> None:
        self.events.append((kind, data))

    def await_events(self, count: int) -> None:
        for _ in range(1000):
            if len(self.events) >= count:
                return
            threading.Event().wait(0.01)
        raise AssertionError(self.events)


class Home:
    """As much of a ``place.Home`` as the copier uses; ``dataclasses.replace`` is told to leave it."""

    def __init__(self, local: Path) -> None:
        self.local = local

    def folder(self, which: StepId) -> Path:
        return self.local / which.folder


@pytest.fixture
def thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Thread]]:
    monkeypatch.setattr(buddy, "replace", lambda home, beat: home)
    monkeypatch.setattr(buddy, "PAUSE_SECONDS", 0.01)
    made: list[Thread] = []

    def make(*answers: Any) -> Thread:
        made.append(Thread(tmp_path, *answers))
        return made[-1]

    yield make
    for one in made:
        one.copier.close()


def test_save_that_waits_is_left_out_for_a_newer_one(thread: Callable[..., Thread]) -> None:
    go = threading.Event()
    one = thread(go, True)
    one.copier.admit(manifest(A))
    while not one.asked:
        threading.Event().wait(0.01)
    one.copier.admit(manifest(B))
    one.copier.admit(manifest(C))
    assert one.copier.copies.coming == {A, C}
    go.set()
    one.await_events(2)
    assert [which for _, which, _ in one.asked] == [A, C]
    assert one.copier.copies.held == {A, C}


def test_peer_that_is_away_for_a_moment_is_asked_again(thread: Callable[..., Thread]) -> None:
    one = thread(PeerError("away"), False, True)
    one.copier.admit(manifest(A))
    one.await_events(1)
    assert [kind for kind, _ in one.events] == ["copied"]


@pytest.mark.parametrize("answers", [[PeerError("away")] * 3, [False] * 3, [ValueError("a fault of ours")]])
def test_copy_that_fails_is_said_and_the_next_is_made(thread: Callable[..., Thread], answers: list[Any]) -> None:
    one = thread(*answers, True)
    one.copier.admit(manifest(A))
    one.await_events(1)
    one.copier.admit(manifest(B))
    one.await_events(2)
    assert [kind for kind, _ in one.events] == ["note", "copied"]
    assert "no second copy of step 2 of h0" in one.events[0][1]["text"]
    assert one.copier.copies.held == {B}


def test_copy_that_would_leave_no_room_for_the_next_save_is_not_made(
    thread: Callable[..., Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buddy, "free_bytes", lambda path: 7)
    one = thread()
    one.copier.admit(manifest(A))
    one.await_events(1)
    assert "NVMe's free space must be at least 8 B, is 7 B" in one.events[0][1]["text"]
    assert one.asked == []


def copies(held: set[StepId], coming: set[StepId] | None = None) -> Copies:
    return Copies(frozenset(held), frozenset(coming or ()))


def test_newest_that_every_node_holds_counts() -> None:
    assert newest_held([copies({A, B}), copies({B, A, C}), copies({A, B}, {C})]) == B
    assert newest_held([copies({A}), copies({B})]) is None
    assert newest_held([]) is None


def test_save_that_the_last_nodes_are_copying_may_be_there_twice_by_now() -> None:
    assert soon_held([copies({A, B}), copies({A}, {B, C})]) == {A, B}
    assert soon_held([copies({A, B}), copies({A}, {C})]) == {A}
    assert soon_held([]) == set()
