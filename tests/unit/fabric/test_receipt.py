import pytest
from fabric_facts import a_device, a_node, a_run, nodes, some_facts

from steelrail.config.keys import fabric_key
from steelrail.fabric.edge import make_report
from steelrail.fabric.receipt import covers, hardware_digest, hosts, is_valid

RUN = a_run()
REPORT = make_report(some_facts(RUN, key=fabric_key(RUN), measured=1000.0), RUN, "7")
WEEK = 168 * 3600


def test_a_fresh_fit_report_of_the_same_key_counts() -> None:
    assert is_valid(REPORT, 1001.0, RUN)


@pytest.mark.parametrize("now", [1000.0 + WEEK, 1000.0 + 2 * WEEK, 0.0])
def test_a_report_counts_only_in_its_time(now: float) -> None:
    assert not is_valid(REPORT, now, RUN)


def test_an_unfit_report_does_not_count() -> None:
    assert not is_valid(REPORT.model_copy(update={"fit": False}), 1001.0, RUN)


def test_a_report_of_other_thresholds_does_not_count() -> None:
    stricter = RUN.model_copy(update={"fabric": RUN.fabric.model_copy(update={"slow_ratio": 0.9})})
    assert not is_valid(REPORT, 1001.0, stricter)


def test_a_report_whose_hardware_was_edited_does_not_count() -> None:
    assert not is_valid(REPORT.model_copy(update={"nodes": nodes(3)}), 1001.0, RUN)


def test_the_order_of_nodes_and_their_timings_do_not_change_the_digest() -> None:
    slower = a_node("node1", devices=tuple(a_device(index, matrix_seconds_p50=9.0) for index in (1, 0)))
    assert hardware_digest((*nodes()[1:][::-1], slower)) == hardware_digest(nodes())


@pytest.mark.parametrize("changed", [{"uuid": "GPU-new"}, {"memory_bytes": 1}, {"name": "other"}])
def test_a_swapped_gpu_changes_the_digest(changed: dict[str, object]) -> None:
    swapped = a_node("node1", devices=(a_device(0, **changed), a_device(1)))
    assert not covers(REPORT, (swapped, *nodes()[1:]))


def test_a_new_driver_changes_the_digest() -> None:
    newer = a_node("node1", versions={**a_node("x").versions, "driver": "581"})
    assert not covers(REPORT, (newer, *nodes()[1:]))


def test_a_report_knows_its_hosts() -> None:
    assert hosts(REPORT) == ("node1", "node2", "node3", "node4")
