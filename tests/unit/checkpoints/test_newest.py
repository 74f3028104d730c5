from __future__ import annotations

from typing import Any

from steelrail.checkpoints.layout import METADATA, StepId
from steelrail.checkpoints.lineage import Resumed
from steelrail.checkpoints.manifest import CheckpointFile, Manifest, rehome
from steelrail.checkpoints.newest import LocalView, StoreView, candidates, must_not_start_over, old_enough

NAMES = frozenset((METADATA, "__0_0.distcp", "__1_0.distcp"))


def manifest(step: int, epoch: int) -> Manifest:
    files = tuple(
        CheckpointFile(name=name, size_bytes=1, sha256="0", rank=0, node_rank=0, host="a") for name in sorted(NAMES)
    )
    fields: dict[str, Any] = {"tokens": 0, "world_size": 2, "num_nodes": 2, "parent_step": None, "parent_epoch": None}
    return Manifest(run="r", key="k", step=step, epoch=epoch, files=files, created=0.0, versions={}, extra={}, **fields)


def view(*which: tuple[int, int], resumed: tuple[Resumed, ...] = (), committed: tuple[StepId, ...] = ()) -> StoreView:
    return StoreView(tuple(manifest(*one) for one in which), resumed, committed, ())


def node(rank: int, *saves: tuple[tuple[int, int], frozenset[str]]) -> LocalView:
    return LocalView(rank, tuple((manifest(*which), names) for which, names in saves), ())


def steps(store: StoreView, *nodes: LocalView) -> list[tuple[int, int, bool]]:
    found, _ = candidates(store, nodes)
    return [(one.manifest.step, one.manifest.epoch, one.in_store) for one in found]


def test_newest_of_store_and_nvme_comes_first() -> None:
    nodes = [node(0, ((6, 1), NAMES)), node(1, ((6, 1), NAMES))]
    assert steps(view((2, 1), (4, 1)), *nodes) == [(6, 1, False), (4, 1, True), (2, 1, True)]


def test_save_in_both_places_is_one_candidate() -> None:
    found, reasons = candidates(view((4, 1)), [node(0, ((4, 1), NAMES))])
    assert [(one.in_store, one.on_nodes) for one in found] == [(True, True)]
    assert reasons == []


def test_nodes_may_hold_the_files_between_them() -> None:
    first, second = node(0, ((6, 1), NAMES - {METADATA})), node(1, ((6, 1), frozenset((METADATA,))))
    assert steps(view(), first, second) == [(6, 1, False)]


def test_save_that_lacks_a_nodes_part_is_passed_over_and_said() -> None:
    found, reasons = candidates(view((4, 1)), [node(0, ((6, 1), NAMES - {"__1_0.distcp"}))])
    assert [one.manifest.step for one in found] == [4]
    assert reasons == ["0000000006-00000001: is on NVMe only, and not all of it on the present nodes"]


def test_save_of_a_replaced_history_is_passed_over() -> None:
    assert steps(view((6, 1), (4, 1), resumed=(Resumed(2, 4, 1),))) == [(4, 1, True)]


def test_state_that_was_taken_over_counts_while_either_of_its_names_does() -> None:
    taken = rehome(manifest(6, 1), 2, dict.fromkeys(NAMES, 0), {0: "a"})
    nodes = [LocalView(0, ((taken, NAMES), (manifest(8, 2), NAMES)), ())]
    # Attempt 3 ran on quite other nodes, from the same state under its older name.
    found, reasons = candidates(view(resumed=(Resumed(2, 6, 1), Resumed(3, 6, 1))), nodes)
    assert [one.manifest.id for one in found] == [StepId(6, 2)]
    assert reasons == ["0000000008-00000002: a later attempt resumed from before it"]
    assert candidates(view(resumed=(Resumed(2, 6, 1), Resumed(3, 4, 1))), nodes)[0] == []


def test_fresh_key_may_start_at_step_0() -> None:
    assert not must_not_start_over(view(resumed=(Resumed(1, 0, 0),)), [])


def test_key_with_any_trace_of_a_checkpoint_may_not_start_over() -> None:
    assert must_not_start_over(view(committed=(StepId(4, 1),)), [])
    assert must_not_start_over(view(resumed=(Resumed(2, 4, 1),)), [])
    assert must_not_start_over(view(), candidates(view((4, 1)), [])[0])


def test_commit_of_a_stale_attempt_is_no_trace() -> None:
    assert not must_not_start_over(view(resumed=(Resumed(2, 0, 0),), committed=(StepId(4, 1),)), [])


def test_what_is_newer_than_a_roll_back_allows_is_passed_over_and_said() -> None:
    nodes = [node(0, ((6, 1), NAMES))]
    found, reasons = old_enough(candidates(view((2, 1), (4, 1)), nodes)[0], 3)
    assert [one.manifest.step for one in found] == [2]
    assert [reason.split(":")[0] for reason in reasons] == ["0000000006-00000001", "0000000004-00000001"]
    assert old_enough(found, None) == (found, [])


def test_a_roll_back_may_start_over_only_where_no_checkpoint_was_ever_as_old() -> None:
    committed = (StepId(5, 1), StepId(15, 2))
    resumed = (Resumed(1, 0, 0), Resumed(2, 10, 1))
    assert must_not_start_over(view(resumed=resumed, committed=committed), [], 5)
    assert not must_not_start_over(view(resumed=resumed, committed=committed), [], 4)
    # Nor does the attempt after that one start where it must not.
    assert not must_not_start_over(view(resumed=(*resumed, Resumed(3, 0, 0)), committed=committed), [])
    assert must_not_start_over(view(resumed=(*resumed, Resumed(3, 0, 0)), committed=(*committed, StepId(5, 3))), [])
