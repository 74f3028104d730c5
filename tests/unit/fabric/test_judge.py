import pytest
from fabric_facts import a_device, a_gather, a_node, a_run, all_pairs, nodes, some_facts

from steelrail.fabric.judge import (
    EVERYONE,
    culprit_hosts,
    judge,
    judge_devices,
    judge_jitter,
    judge_rack,
    judge_versions,
)

HOSTS = [f"node{number}" for number in range(1, 5)]


def with_device(**changed: object) -> tuple[object, ...]:
    """Four nodes, of which node2's second device is changed."""
    odd = a_node("node2", (2, 3), devices=(a_device(0), a_device(1, **changed)))
    return tuple(odd if node.host == "node2" else node for node in nodes())


def said(findings: object) -> list[tuple[str, str]]:
    return [(finding.severity, finding.culprit) for finding in findings]  # type: ignore[attr-defined]


def test_equal_nodes_are_fit() -> None:
    verdict = judge(some_facts(a_run()), a_run())
    assert (verdict.findings, verdict.fit, verdict.exclude) == ((), True, ())


def test_a_slow_node_is_unfit_and_excluded() -> None:
    verdict = judge(some_facts(a_run(), pairs=all_pairs(HOSTS, slow_host="node3")), a_run())
    assert (said(verdict.findings), verdict.fit, verdict.exclude) == ([("unfit", "node3")], False, ("node3",))


def test_a_slow_link_excludes_its_second_host() -> None:
    slow = {frozenset(("node1", "node4")): 1.0}
    verdict = judge(some_facts(a_run(), pairs=all_pairs(HOSTS, slow)), a_run())
    assert (said(verdict.findings), verdict.exclude) == ([("unfit", "node1-node4")], ("node4",))


def test_other_bits_are_unfit_and_name_the_gpu() -> None:
    verdict = judge(some_facts(a_run(), nodes=with_device(matrix_digest="other")), a_run())
    assert (said(verdict.findings), verdict.exclude) == ([("unfit", "node2/gpu1")], ("node2",))


def test_bits_are_compared_within_one_model_only() -> None:
    odd = with_device(matrix_digest="other", name="NVIDIA H200")
    assert [finding.what.split()[0] for finding in judge_devices(odd, 0.5, "cuda")] == ["device"]


def test_other_bits_without_a_majority_blame_all_and_exclude_nobody() -> None:
    pair = (a_node("node1"), a_node("node2", (2, 3), devices=tuple(a_device(i, matrix_digest="x") for i in (0, 1))))
    verdict = judge(some_facts(a_run(), nodes=pair, pairs=()), a_run())
    assert (said(verdict.findings), verdict.fit, verdict.exclude) == ([("unfit", EVERYONE)], False, ())


def test_a_gpu_at_a_third_of_the_speed_is_unfit() -> None:
    assert said(judge_devices(with_device(matrix_seconds_p50=0.003), 0.5, "cuda")) == [("unfit", "node2/gpu1")]


def test_a_core_at_a_third_of_the_speed_is_no_news_and_at_a_tenth_a_warning() -> None:
    assert said(judge_devices(with_device(matrix_seconds_p50=0.003), 0.5, "cpu")) == []
    assert said(judge_devices(with_device(matrix_seconds_p50=0.010), 0.5, "cpu")) == [("warning", "node2/gpu1")]


def test_another_gpu_model_is_unfit() -> None:
    assert ("unfit", "node2/gpu1") in said(judge_devices(with_device(name="NVIDIA A100"), 0.5, "cuda"))


def test_gpus_of_one_name_with_other_memory_are_another_model() -> None:
    assert said(judge_devices(with_device(memory_bytes=94 * 10**9), 0.5, "cuda")) == [("unfit", "node2/gpu1")]


@pytest.mark.parametrize(("name", "severity"), [("nccl", "unfit"), ("torch", "unfit"), ("driver", "warning")])
def test_a_version_that_differs_names_the_node(name: str, severity: str) -> None:
    odd = a_node("node4", (6, 7), versions={**a_node("x").versions, name: "0"})
    assert said(judge_versions((*nodes(3), odd))) == [(severity, "node4")]


@pytest.mark.parametrize(
    ("rack", "leaf", "expected"),
    [
        ("required", "leaf2", [("unfit", EVERYONE)]),
        ("preferred", "leaf2", [("warning", EVERYONE)]),
        ("any", "leaf2", []),
        ("required", "leaf1", []),
        ("required", None, [("unfit", EVERYONE)]),
    ],
)
def test_one_leaf_is_proved_refused_or_recorded(rack: str, leaf: str | None, expected: list[tuple[str, str]]) -> None:
    assert said(judge_rack((*nodes(3), a_node("node4", (6, 7), leaf=leaf)), rack)) == expected


def test_a_single_node_needs_no_leaf() -> None:
    assert judge_rack((a_node("node1", leaf=None),), "required") == ()


@pytest.mark.parametrize(
    ("p99", "device", "expected"),
    [
        (0.002, "cuda", []),
        (0.010, "cuda", [("warning", EVERYONE)]),
        (0.060, "cuda", [("unfit", EVERYONE)]),
        (0.010, "cpu", []),
        (0.060, "cpu", [("warning", EVERYONE)]),
    ],
)
def test_jitter_is_a_word_then_a_refusal_on_gpus(p99: float, device: str, expected: list[tuple[str, str]]) -> None:
    assert said(judge_jitter([a_gather(0.001, p99)], 50.0, device)) == expected


def test_jitter_of_other_collectives_is_not_judged() -> None:
    assert judge_jitter([a_gather(0.001, 0.1, "all_reduce")], 50.0, "cuda") == ()


def test_links_all_alike_but_far_below_the_promise_are_a_warning() -> None:
    pairs = tuple(pair.model_copy(update={"gb_per_s": 1.0}) for pair in all_pairs(HOSTS))
    verdict = judge(some_facts(a_run(), pairs=pairs), a_run())
    assert (said(verdict.findings), verdict.fit) == ([("warning", EVERYONE)], True)


def test_a_host_is_not_blamed_for_a_host_whose_name_it_begins() -> None:
    assert culprit_hosts("node1/gpu3", ["node1", "node10"]) == ("node1",)
    assert culprit_hosts("node10", ["node1", "node10"]) == ("node10",)
