from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from steelrail.checkpoints import fence
from steelrail.checkpoints.layout import StepId
from steelrail.checkpoints.lineage import Resumed, Rollback
from steelrail.clients.store import Store
from steelrail.errors import BusyError, CheckpointError


def test_each_claim_is_greater_than_all_before(store: Store) -> None:
    assert fence.current(store, "run", "claims") == 0
    assert [fence.claim(store, "run", "claims") for _ in range(3)] == [1, 2, 3]
    assert fence.current(store, "run", "claims") == 3


def test_racing_claims_never_share_an_epoch(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        epochs = list(pool.map(lambda _: fence.claim(store, "run", "races"), range(8)))
    assert sorted(epochs) == list(range(1, 9))


def test_only_the_newest_attempt_passes_its_fence(store: Store) -> None:
    first = fence.claim(store, "run", "newest")
    fence.require_newest(store, "run", "newest", first)
    second = fence.claim(store, "run", "newest")
    with pytest.raises(BusyError, match="fence must be the newest, is 1, with 2 after it"):
        fence.require_newest(store, "run", "newest", first)
    fence.require_newest(store, "run", "newest", second)


def test_what_attempts_resumed_from_is_read_back(store: Store) -> None:
    fence.record_resume(store, "run", "resumes", 1, None)
    fence.record_resume(store, "run", "resumes", 2, StepId(50, 1))
    fence.record_resume(store, "run", "resumes", 2, StepId(50, 1))
    assert fence.resumes(store, "run", "resumes") == (Resumed(1, 0, 0), Resumed(2, 50, 1))


def test_attempt_resumes_from_one_place_only(store: Store) -> None:
    fence.record_resume(store, "run", "once", 1, StepId(50, 1))
    with pytest.raises(CheckpointError, match="resume record must be"):
        fence.record_resume(store, "run", "once", 1, StepId(60, 1))


def test_first_commit_of_an_attempt_is_kept(store: Store) -> None:
    fence.record_commit(store, "run", "commits", 1, StepId(50, 1))
    fence.record_commit(store, "run", "commits", 1, StepId(60, 1))
    assert fence.commits(store, "run", "commits") == (StepId(50, 1),)


def test_torn_record_is_an_error(store: Store) -> None:
    store.put(store.key("run", "torn", "fence", "00000001.resume.json"), b'{"step": 5')
    with pytest.raises(CheckpointError, match="fence record must be valid JSON, is torn"):
        fence.resumes(store, "run", "torn")


def test_foreign_objects_beside_fences_are_left_alone(store: Store) -> None:
    store.put(store.key("run", "foreign", "fence", "README"), b"hello")
    assert fence.claim(store, "run", "foreign") == 1


def test_what_an_attempt_rolled_back_is_read_back_and_does_not_change(store: Store) -> None:
    decided = Rollback(fence.claim(store, "run", "rolls"), 17, 10, 15, "loss must be finite, is nan")
    assert fence.rollbacks(store, "run", "rolls") == ()
    fence.record_rollback(store, "run", "rolls", decided)
    fence.record_rollback(store, "run", "rolls", decided)
    assert fence.rollbacks(store, "run", "rolls") == (decided,)
    assert (fence.current(store, "run", "rolls"), fence.resumes(store, "run", "rolls")) == (1, ())
    with pytest.raises(CheckpointError, match="rollback record must be"):
        fence.record_rollback(store, "run", "rolls", replace(decided, at_most=5))


def test_an_attempt_that_was_overtaken_rolls_nothing_back(store: Store) -> None:
    first, _ = (fence.claim(store, "run", "stale") for _ in range(2))
    with pytest.raises(BusyError, match="fence must be the newest"):
        fence.record_rollback(store, "run", "stale", Rollback(first, 17, 10, 15, "loss is nan"))
    assert fence.rollbacks(store, "run", "stale") == ()


def test_a_torn_roll_back_stops_the_run(store: Store) -> None:
    store.put(store.key("run", "torn-roll", "fence", "00000001.rollback.json"), b'{"step": 17}')
    with pytest.raises(CheckpointError, match="fence record must be valid JSON, is torn"):
        fence.rollbacks(store, "run", "torn-roll")
