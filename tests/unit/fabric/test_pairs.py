import pytest
from fabric_facts import a_pair, all_pairs

from steelrail.fabric.pairs import better, judge_pairs, link_ratio, suspects, usual_gb_per_s

HOSTS = [f"node{number}" for number in range(1, 5)]


def culprits(pairs: tuple[object, ...]) -> list[str]:
    return [finding.culprit for finding in judge_pairs(pairs, 0.5).findings]  # type: ignore[arg-type]


def test_equal_links_give_no_finding() -> None:
    assert judge_pairs(all_pairs(HOSTS), 0.5).findings == ()


@pytest.mark.parametrize("count", [3, 4, 5, 8, 16])
@pytest.mark.parametrize("place", [0, -1])
def test_a_slow_node_is_named_among_any_number_of_nodes(count: int, place: int) -> None:
    hosts = [f"node{number}" for number in range(count)]
    assert culprits(all_pairs(hosts, slow_host=hosts[place])) == [hosts[place]]


def test_two_slow_nodes_of_eight_are_both_named() -> None:
    hosts = [f"node{number}" for number in range(8)]
    slow = {frozenset((one, other)): 1.0 for one in ("node2", "node5") for other in hosts if one != other}
    assert sorted(culprits(all_pairs(hosts, slow))) == ["node2", "node5"]


@pytest.mark.parametrize("count", [3, 4, 8])
def test_one_slow_link_is_named_and_neither_of_its_nodes(count: int) -> None:
    hosts = [f"node{number}" for number in range(count)]
    slow = {frozenset(("node0", "node2")): 1.0}
    verdict = judge_pairs(all_pairs(hosts, slow), 0.5)
    assert [finding.culprit for finding in verdict.findings] == ["node0-node2"]
    assert verdict.exclude == ("node2",)


def test_a_slow_node_and_another_slow_link_are_told_apart() -> None:
    hosts = [f"node{number}" for number in range(8)]
    slow = {frozenset(("node0", "node2")): 1.0}
    assert culprits(all_pairs(hosts, slow, slow_host="node7")) == ["node7", "node0-node2"]


def test_a_single_pair_has_nothing_to_be_held_against() -> None:
    assert culprits((a_pair("a", "b", 0.001),)) == []


def test_one_slow_rail_of_a_node_names_its_gpu() -> None:
    slow = all_pairs(HOSTS, slow_host="node3")
    sound = tuple(pair.model_copy(update={"rail": 1}) for pair in all_pairs(HOSTS))
    assert culprits(slow + sound) == ["node3/gpu0"]


def test_a_node_slow_on_all_rails_is_named_once() -> None:
    assert culprits(all_pairs(HOSTS, slow_host="node3", rails=2)) == ["node3"]


def test_a_slow_gpu_inside_a_node_is_named_by_its_own_kinds_speed() -> None:
    inside = all_pairs([f"node1/gpu{index}" for index in range(4)], slow_host="node1/gpu2")
    between = tuple(a_pair(pair.first, pair.second, pair.gb_per_s / 100) for pair in all_pairs(HOSTS))
    assert culprits(inside + between) == ["node1/gpu2"]


def test_changed_bytes_are_unfit_at_any_speed() -> None:
    pairs = (*all_pairs(HOSTS)[1:], a_pair("node1", "node2", 10.0, intact=False))
    assert culprits(pairs) == ["node1-node2"]


def test_what_is_usual_does_not_sink_with_one_slow_node_of_three() -> None:
    assert usual_gb_per_s(all_pairs(["a", "b", "c"], slow_host="c")) == 10.0


def test_suspects_are_the_slow_pairs() -> None:
    found = suspects(all_pairs(HOSTS, slow_host="node2"), 0.5)
    assert {(pair.first, pair.second) for pair in found} == {
        ("node1", "node2"),
        ("node2", "node3"),
        ("node2", "node4"),
    }


def test_the_better_time_counts_but_damage_stays() -> None:
    kept = better(a_pair("a", "b", 1.0, intact=False), a_pair("a", "b", 5.0))
    assert (kept.gb_per_s, kept.intact) == (5.0, False)


def test_links_are_judged_half_as_strictly_where_cores_are_shared() -> None:
    assert (link_ratio(0.5, "cuda"), link_ratio(0.5, "cpu")) == (0.5, 0.25)


def test_a_node_with_most_but_not_all_links_slow_is_named() -> None:
    hosts = [f"node{number}" for number in range(8)]
    slow = {frozenset(("node2", other)): 1.0 for other in hosts[3:8]}
    assert culprits(all_pairs(hosts, slow)) == ["node2"]


def test_a_node_with_half_its_links_slow_is_not_blamed_for_them() -> None:
    slow = {frozenset(("node2", other)): 1.0 for other in ("node0", "node1")}
    found = culprits(all_pairs([f"node{number}" for number in range(5)], slow))
    assert found == ["node0-node2", "node1-node2"]
