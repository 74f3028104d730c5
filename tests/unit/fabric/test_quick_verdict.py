from dataclasses import replace

import pytest
from fabric_facts import a_pair, a_run, all_pairs, some_facts

from steelrail.artifacts.fabric import FabricReport
from steelrail.fabric.edge import make_report
from steelrail.fabric.quick_verdict import QuickFact, quick_verdict

SIZE = 10**9


def fact(rank: int, seconds: float | None = 0.1) -> QuickFact:
    return QuickFact(rank, f"node{rank // 2 + 1}", rank % 2, "H100", f"GPU-{rank % 2}", "same", seconds, 0.01, 1.5)


FACTS = [fact(rank) for rank in range(8)]


def baseline(gb_per_s: float) -> FabricReport:
    hosts = [f"node{number}" for number in range(1, 5)]
    pairs = [a_pair(one.first, one.second, gb_per_s, one.rail) for one in all_pairs(hosts, rails=2)]
    return make_report(some_facts(a_run(), pairs=tuple(pairs)), a_run(), "1")


def changed(rank: int, **fields: object) -> list[QuickFact]:
    return [replace(one, **fields) if one.rank == rank else one for one in FACTS]  # type: ignore[arg-type]


def test_sound_nodes_may_start() -> None:
    result = quick_verdict(FACTS, SIZE, a_run(), None)
    assert (result.ok, result.culprits, result.worst_gb_per_s) == (True, (), pytest.approx(10.0))


def test_other_bits_stop_the_attempt_and_name_the_host() -> None:
    result = quick_verdict(changed(5, product="other"), SIZE, a_run(), None)
    assert (result.ok, result.culprits) == (False, ("node3",))
    assert "node3/gpu1" in result.detail


def test_a_slow_link_is_named_from_sender_to_receiver() -> None:
    result = quick_verdict(changed(2, receive_seconds=1.0), SIZE, a_run(), None)
    assert (result.ok, result.worst_link, result.culprits) == (False, "node1-node2", ("node2",))


def test_a_node_slow_on_both_sides_is_the_culprit() -> None:
    slow = [replace(one, receive_seconds=1.0) if one.rank in (4, 5, 6, 7) else one for one in FACTS]
    assert quick_verdict(slow, SIZE, a_run(), None).culprits == ("node3",)


def test_links_all_slower_than_the_baseline_stop_the_attempt() -> None:
    assert quick_verdict(FACTS, SIZE, a_run(), baseline(11.0)).ok
    assert not quick_verdict(FACTS, SIZE, a_run(), baseline(30.0)).ok


def test_where_cores_are_shared_only_a_link_far_below_stops_the_attempt() -> None:
    cpu = a_run("cpu")
    assert quick_verdict(FACTS, SIZE, cpu, baseline(30.0)).ok
    assert not quick_verdict(FACTS, SIZE, cpu, baseline(300.0)).ok


def test_a_single_node_has_no_links() -> None:
    result = quick_verdict([fact(0, None), fact(1, None)], SIZE, a_run(), None)
    assert (result.ok, result.worst_link) == (True, None)


def test_times_are_those_of_the_slowest_rank() -> None:
    assert quick_verdict(changed(6, seconds=3.0), SIZE, a_run(), None).seconds == 3.0


def test_bits_without_a_majority_stop_the_attempt_and_name_all() -> None:
    result = quick_verdict([fact(0, None), replace(fact(2, None), product="other")], SIZE, a_run(), None)
    assert (result.ok, result.culprits) == (False, ("node1", "node2"))


def test_a_node_that_the_receipt_does_not_cover_is_named_and_no_fault() -> None:
    result = quick_verdict(changed(5, host="node9"), SIZE, a_run(), baseline(10.0))
    assert (result.ok, result.uncovered) == (True, ("node9",))


def test_without_a_receipt_nothing_is_called_uncovered() -> None:
    assert quick_verdict(FACTS, SIZE, a_run(), None).uncovered == ()
