from __future__ import annotations

import logging

import pytest

from steelrail.checkpoints import fence, retention
from steelrail.checkpoints.buddy import Copies
from steelrail.checkpoints.keep import judge
from steelrail.checkpoints.layout import LOCAL_COMMIT, MANIFEST, METADATA, StepId, parse_folder
from steelrail.checkpoints.manifest import CheckpointFile, Manifest, encode
from steelrail.checkpoints.place import Home
from steelrail.checkpoints.retention import NodeSweep, local_removals
from steelrail.clients.store import Store
from steelrail.config.schema import Checkpoints
from steelrail.errors import BusyError

EPOCH = 5


def put(store: Store, key: str, which: StepId, *, size: int = 3, loss: float | None = None) -> None:
    """Write a checkpoint; its manifest says that its file has three bytes."""
    file = CheckpointFile(name=METADATA, size_bytes=3, sha256="", rank=0, node_rank=0, host="node1")
    manifest = Manifest(
        run="run", key=key, step=which.step, epoch=which.epoch, tokens=0, world_size=1, num_nodes=1, files=(file,),
        parent_step=None, parent_epoch=None, created=1000.0, versions={},
        extra={} if loss is None else {"heldout_loss": loss},
    )  # fmt: skip
    folder = store.key("run", key, "steps", which.folder)
    store.put(f"{folder}/{METADATA}", b"x" * size)
    store.put(f"{folder}/{MANIFEST}", encode(manifest))


def steps(store: Store, key: str) -> list[int]:
    return sorted(one.which.step for one in retention.survey(store, "run", key))


@pytest.fixture
def home(store: Store, tmp_path, request: pytest.FixtureRequest) -> Home:
    key = f"retention-{request.node.name}".replace("[", "-").replace("]", "")
    epoch = fence.claim(store, "run", key)
    return Home(store, "run", key, epoch, tmp_path, Checkpoints(keep_last=1, keep_best=1))


def test_a_survey_tells_loss_age_and_fault(home: Home) -> None:
    put(home.store, home.key, StepId(1, 1), loss=2.0)
    put(home.store, home.key, StepId(2, 1), size=2)
    home.store.put(home.store.key("run", home.key, "steps", StepId(3, 1).folder, METADATA), b"xyz")
    unfinished, damaged, sound = retention.survey(home.store, "run", home.key)
    assert (sound.fault, sound.heldout_loss, sound.created, sound.names) == (None, 2.0, 1000.0, (METADATA, MANIFEST))
    assert damaged.fault is not None and f"{METADATA} has 2 bytes, not 3" in damaged.fault
    assert (unfinished.has_manifest, unfinished.created, unfinished.size_bytes) == (False, None, 3)
    assert unfinished.changed is not None and unfinished.changed > 1e9


def test_a_sweep_after_a_commit_leaves_the_newest_and_the_best(home: Home) -> None:
    for step, loss in ((1, 2.0), (2, 1.0), (3, None), (4, 3.0)):
        put(home.store, home.key, StepId(step, 1), loss=loss)
    retention.sweep_store(home, StepId(4, 1))
    assert steps(home.store, home.key) == [2, 4]


def test_nothing_goes_when_what_was_just_committed_cannot_be_proved(home: Home, caplog) -> None:
    for step, size in ((1, 3), (2, 3), (3, 2)):
        put(home.store, home.key, StepId(step, 1), size=size)
    with caplog.at_level(logging.WARNING):
        retention.sweep_store(home, StepId(3, 1))
    assert steps(home.store, home.key) == [1, 2, 3]
    assert "nothing is removed from the store" in caplog.text


def test_a_manifest_goes_before_its_files(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        put(home.store, home.key, StepId(step, 1))
    seen: list[str] = []
    monkeypatch.setattr(home.store, "delete", lambda key: seen.append(key.rsplit("/", 1)[1]))
    retention.sweep_store(home, StepId(2, 1))
    assert seen == [MANIFEST, METADATA]


def test_removal_stops_once_a_newer_attempt_is_there(home: Home) -> None:
    for step in (1, 2):
        put(home.store, home.key, StepId(step, 1))
    verdicts = judge(retention.survey(home.store, "run", home.key), (), home.epoch, home.settings)
    fence.claim(home.store, "run", home.key)
    with pytest.raises(BusyError):
        retention.remove(home.store, "run", home.key, home.epoch, verdicts)
    assert steps(home.store, home.key) == [1, 2]


def test_a_failed_sweep_ends_no_upload(home: Home, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    def fail(*_: object) -> None:
        raise BusyError("newer")

    monkeypatch.setattr(retention, "survey", fail)
    retention.sweep_store_or_log(home, StepId(2, 1))
    assert "could not be removed from the store: newer" in caplog.text


def test_nvme_keeps_the_two_newest_commits_and_what_is_waited_for() -> None:
    there = {StepId(step, 1): True for step in range(1, 6)}
    assert local_removals(there, {StepId(2, 1)}) == [StepId(1, 1), StepId(3, 1)]


def test_nvme_counts_by_attempt_before_step() -> None:
    there = {StepId(9, 1): True, StepId(4, 2): True, StepId(5, 2): True, StepId(3, 1): False}
    assert local_removals(there, set()) == [StepId(9, 1), StepId(3, 1)]


def test_nvme_keeps_the_save_that_is_being_written() -> None:
    there = {StepId(4, 2): True, StepId(5, 2): False, StepId(3, 2): False}
    assert local_removals(there, set()) == [StepId(3, 2)]


def test_nvme_without_a_commit_is_left_alone() -> None:
    assert local_removals({StepId(4, 2): False}, set()) == []


@pytest.fixture
def nvme(tmp_path) -> Home:
    """One node's NVMe in the eyes of attempt ``EPOCH``, which needs no store."""
    return Home(Store.__new__(Store), "run", "key", EPOCH, tmp_path, Checkpoints())


def on_nvme(nvme: Home, *saves: StepId) -> None:
    for which in saves:
        nvme.folder(which).mkdir(mode=0o700, parents=True, exist_ok=True)
        (nvme.folder(which) / LOCAL_COMMIT).write_text("")


def left(nvme: Home) -> list[StepId]:
    return sorted(which for path in nvme.local.iterdir() if (which := parse_folder(path.name)) is not None)


def copies(held: set[StepId], coming: set[StepId] | None = None) -> Copies:
    return Copies(frozenset(held), frozenset(coming or ()))


def test_stale_attempt_leaves_a_newer_ones_saves_on_nvme_alone(nvme: Home) -> None:
    newer = [StepId(step, EPOCH + 1) for step in (2, 4, 6)]
    on_nvme(nvme, StepId(8, EPOCH - 1), *(StepId(step, EPOCH) for step in (3, 5, 7)), *newer)
    NodeSweep(nvme).sweep(set(), None, [copies({StepId(7, EPOCH)})])
    assert left(nvme) == sorted([StepId(5, EPOCH), StepId(7, EPOCH), *newer])


def test_saves_before_one_that_was_taken_over_stay_until_one_is_safe(nvme: Home) -> None:
    taken_over, past = StepId(4, EPOCH), [StepId(2, EPOCH - 2), StepId(4, EPOCH - 1)]
    on_nvme(nvme, *past, taken_over, *(StepId(step, EPOCH) for step in (6, 8, 10)))
    sweep = NodeSweep(nvme)
    sweep.resumed(taken_over)
    sweep.sweep(set(), None, [copies({taken_over}), copies(set())])
    assert left(nvme) == sorted([*past, taken_over, StepId(8, EPOCH), StepId(10, EPOCH)])
    sweep.sweep(set(), None, [copies({taken_over}), copies({taken_over})])
    assert left(nvme) == [taken_over, StepId(8, EPOCH), StepId(10, EPOCH)]


@pytest.mark.parametrize("durable", [None, StepId(6, EPOCH)])
def test_saves_before_one_that_is_durable_go(nvme: Home, durable: StepId | None) -> None:
    resumed = StepId(4, EPOCH - 1 if durable is None else EPOCH)
    on_nvme(nvme, StepId(2, EPOCH - 1), resumed, *(StepId(step, EPOCH) for step in (6, 8, 10)))
    sweep = NodeSweep(nvme)
    sweep.resumed(resumed)
    sweep.sweep(set(), durable, [copies(set()), copies(set())])
    assert left(nvme) == [durable or resumed, StepId(8, EPOCH), StepId(10, EPOCH)]


def test_save_whose_last_copies_are_on_their_way_stays_beside_the_last_safe_one(nvme: Home) -> None:
    safe, soon = StepId(2, EPOCH), StepId(4, EPOCH)
    on_nvme(nvme, *(StepId(step, EPOCH) for step in (2, 3, 4, 6, 8)))
    NodeSweep(nvme).sweep(set(), None, [copies({safe, soon}), copies({safe}, {soon})])
    assert left(nvme) == [safe, soon, StepId(6, EPOCH), StepId(8, EPOCH)]
