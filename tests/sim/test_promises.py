"""Seeds of the simulator keep every promise; a broken build of the protocol is caught.

``STEELRAIL_SIM_SEEDS`` says how many seeds are played (``make test-sim``: 10,000). A seed that fails is named, and
plays the same again: ``STEELRAIL_SIM_FIRST=<seed> STEELRAIL_SIM_SEEDS=1``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from sim_store import Client
from sim_world import run_seeds, simulated, world

from steelrail.checkpoints import bring, fence, keep, newest, peers, restore, retention
from steelrail.checkpoints.buddy import Copier
from steelrail.checkpoints.layout import receipt_name
from steelrail.checkpoints.manifest import digest
from steelrail.checkpoints.upload import Uploader

SEEDS = int(os.environ.get("STEELRAIL_SIM_SEEDS", "200"))
FIRST = int(os.environ.get("STEELRAIL_SIM_FIRST", "0"))
FAULTS = ("error", "timeout", "late", "slow", "torn", "duplicate", "reordered", "crash", "stopped", "away", "rot")
FAULTS += ("starved", "peer away", "peer damaged")


@pytest.fixture
def patch() -> Any:
    with simulated() as patched:
        yield patched


def show(counts: Counter[str]) -> str:
    """One line a kind of thing, for the test's own output."""
    return "\n".join(f"{number:>9,}  {what}" for what, number in sorted(counts.items()))


@pytest.mark.timeout(3600)
def test_no_seed_breaks_a_promise(patch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = run_seeds(range(FIRST, FIRST + SEEDS), tmp_path / "nvme")
    with capsys.disabled():
        print(f"\n{show(counts)}")  # noqa: T201 - the figures are what this test is run for
    assert counts["seeds"] == SEEDS
    assert SEEDS < 200 or all(counts[f"fault: {kind}"] for kind in FAULTS)
    assert SEEDS < 200 or counts["attempts: rolled back"]


def manifest_before_the_other_nodes_are_done(patch: Any) -> None:
    patch.setattr(Uploader, "_await_receipt", lambda self, manifest, node_rank: None)


def receipt_before_the_files(patch: Any) -> None:
    real = Uploader._send

    def send(self: Any, manifest: Any, done: set[str]) -> None:
        key = self._home.object_key(manifest.id, receipt_name(self._node_rank))
        self._home.store.put(key, f'{{"manifest": "{digest(manifest)}"}}'.encode())
        real(self, manifest, done)

    patch.setattr(Uploader, "_send", send)


def puts_without_their_condition(patch: Any) -> None:
    real = Client.put_object

    def put(self: Any, IfNoneMatch: str = "", **rest: Any) -> Any:
        return real(self, **rest)

    patch.setattr(Client, "put_object", put)


def fence_not_looked_at(patch: Any) -> None:
    patch.setattr(fence, "require_newest", lambda store, run, key, epoch: None)


def files_removed_before_the_manifest(patch: Any) -> None:
    def remove(store: Any, run: str, key: str, held: Any) -> None:
        for name in sorted(held.names):
            store.delete(store.key(run, key, "steps", held.which.folder, name))

    patch.setattr(retention, "_remove", remove)


def newest_not_kept(patch: Any) -> None:
    real = keep.why_kept
    patch.setattr(keep, "why_kept", lambda *told: dict(sorted(real(*told).items())[:-1]))


def no_lineage(patch: Any) -> None:
    for module in (newest, keep):
        patch.setattr(module, "is_void", lambda saved, resumed: False)


def resume_not_written_down(patch: Any) -> None:
    patch.setattr(fence, "record_resume", lambda store, run, key, epoch, source: None)


def files_not_proved(patch: Any) -> None:
    patch.setattr(bring, "sha256_file", lambda path: Anything())
    patch.setattr(bring, "require_digest", lambda file, found, manifest: None)


def copies_not_proved(patch: Any) -> None:
    real = peers.fetch_file

    def fetch(peer: Any, secret: Any, name: Any, path: Any, size_bytes: Any, sha256: Any, beat: Any) -> bool:
        return real(peer, secret, name, path, size_bytes, Anything(), beat)

    patch.setattr(peers, "fetch_file", fetch)


def peers_not_asked(patch: Any) -> None:
    patch.setattr(bring, "_from_holders", lambda sources, file: False)


def copies_said_before_they_are_there(patch: Any) -> None:
    patch.setattr(Copier, "_pull", lambda self, manifest, file: None)


def copied_saves_not_kept(patch: Any) -> None:
    real = retention.sweep_node
    patch.setattr(retention, "sweep_node", lambda home, wanted: real(home, set()))


def oldest_resumed_first(patch: Any) -> None:
    real = restore.candidates

    def candidates(*args: Any) -> Any:
        taken, reasons = real(*args)
        return taken[::-1], reasons

    patch.setattr(restore, "candidates", candidates)


def bound_of_a_roll_back_ignored(patch: Any) -> None:
    patch.setattr(restore, "newest_allowed", lambda rollbacks, resumed: None)


def bound_of_a_roll_back_forever(patch: Any) -> None:
    real = restore.newest_allowed
    patch.setattr(restore, "newest_allowed", lambda rollbacks, resumed: real(rollbacks, ()))


def roll_back_without_a_look_at_the_fence(patch: Any) -> None:
    def record(store: Any, run: str, key: str, decided: Any) -> None:
        fields = {name: value for name, value in asdict(decided).items() if name != "epoch"}
        fence._write_once(store, run, key, decided.epoch, "rollback", fields)

    patch.setattr(fence, "record_rollback", record)


def roll_back_recorded_behind_the_ranks_back(patch: Any) -> None:
    real = fence.record_rollback

    def record(*told: Any) -> None:
        sim = world().sim
        sim.start(sim.process, lambda: real(*told))

    patch.setattr(fence, "record_rollback", record)


def all_but_the_last_roll_back_forgotten(patch: Any) -> None:
    real = fence.rollbacks
    patch.setattr(fence, "rollbacks", lambda store, run, key: real(store, run, key)[-1:])


def one_roll_back_thought_of_at_most(patch: Any) -> None:
    real = keep.why_kept
    patch.setattr(keep, "why_kept", lambda losses, rules, bad: real(losses, rules, bad.model_copy(update={"limit": 1})))


class Anything(str):
    """Equal to every digest."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("broken", "within", "promise"),
    [
        (manifest_before_the_other_nodes_are_done, 50, "a manifest is written when all its files are whole"),
        (receipt_before_the_files, 50, "a manifest is written when all its files are whole"),
        (puts_without_their_condition, 100, "every claim of the fence is unique"),
        (fence_not_looked_at, 400, "a stale attempt looked at the fence before its manifest"),
        (files_removed_before_the_manifest, 50, "a manifest goes before its files"),
        (newest_not_kept, 50, "the newest that counts is never removed"),
        (no_lineage, 400, "what a later attempt replaced never counts"),
        (resume_not_written_down, 400, "what a later attempt replaced never counts"),
        (files_not_proved, 400, "what is read is whole and of this checkpoint|a save that is there twice"),
        (copies_not_proved, 400, "what is read is whole and of this checkpoint"),
        (peers_not_asked, 100, "a save that is there twice"),
        (copies_said_before_they_are_there, 100, "a save that is there twice"),
        (copied_saves_not_kept, 400, "a save that is there twice"),
        (oldest_resumed_first, 50, "BrokenPromise"),
        (bound_of_a_roll_back_ignored, 50, "after a roll back nothing newer than it allows is resumed from"),
        (bound_of_a_roll_back_forever, 100, "BrokenPromise"),
        (roll_back_without_a_look_at_the_fence, 200, "an attempt that is stale at its bad step|looks at the fence"),
        (roll_back_recorded_behind_the_ranks_back, 50, "a roll back is recorded before any rank ends"),
        (all_but_the_last_roll_back_forgotten, 100, "every later attempt leaves out the same steps"),
        (one_roll_back_thought_of_at_most, 100, "what a roll back may need is never removed"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_broken_build_is_caught(
    patch: Any, tmp_path: Path, broken: Callable[[Any], None], within: int, promise: str
) -> None:
    broken(patch)
    with pytest.raises(AssertionError, match=promise):
        run_seeds(range(within), tmp_path / "nvme")
