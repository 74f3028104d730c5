import pytest
from fabric_facts import a_device, a_node, a_run, nodes, some_facts

from steelrail.artifacts.fabric import FabricReport
from steelrail.config.keys import fabric_key
from steelrail.config.schema import Run
from steelrail.fabric.edge import make_report
from steelrail.fabric.receipt import hardware_digest, lapse, uncovered

RUN = a_run()
REPORT = make_report(some_facts(RUN, key=fabric_key(RUN), measured=1000.0), RUN, "7")
WEEK = 168 * 3600


def said(report: FabricReport, now: float, run: Run) -> str:
    why = lapse(report, now, run)
    return f"must be {why.be}, is {why.actual}" if why else "admits"


def test_a_fresh_fit_report_of_the_same_key_counts() -> None:
    assert said(REPORT, 1001.0, RUN) == "admits"


def test_a_report_that_is_too_old_says_how_old() -> None:
    late = 1000.0 + WEEK + 2.5 * 86400
    assert said(REPORT, late, RUN) == "must be younger than 7 d 0 h (fabric.valid_hours), is 9 d 12 h old"


@pytest.mark.parametrize(("now", "word"), [(1000.0 + WEEK, "7 d 0 h old"), (0.0, "16 min 40 s ahead")])
def test_a_report_counts_only_in_its_time(now: float, word: str) -> None:
    assert word in said(REPORT, now, RUN)


def test_an_unfit_report_does_not_count() -> None:
    unfit = REPORT.model_copy(update={"fit": False, "exclude": ("node3",)})
    assert said(unfit, 1001.0, RUN) == "must be of fit nodes, is of unfit ones (node3)"


def test_a_report_of_other_thresholds_does_not_count() -> None:
    stricter = RUN.model_copy(update={"fabric": RUN.fabric.model_copy(update={"slow_ratio": 0.9})})
    assert f"of others (key {REPORT.key})" in said(REPORT, 1001.0, stricter)


def test_a_report_whose_hardware_was_edited_does_not_count() -> None:
    assert "is changed" in said(REPORT.model_copy(update={"nodes": nodes(3)}), 1001.0, RUN)


def test_the_order_of_nodes_and_their_timings_do_not_change_the_digest() -> None:
    slower = a_node("node1", devices=tuple(a_device(index, matrix_seconds_p50=9.0) for index in (1, 0)))
    assert hardware_digest((*nodes()[1:][::-1], slower)) == hardware_digest(nodes())


@pytest.mark.parametrize("changed", [{"uuid": "GPU-new"}, {"memory_bytes": 1}, {"name": "other"}])
def test_a_swapped_gpu_changes_the_digest(changed: dict[str, object]) -> None:
    swapped = a_node("node1", devices=(a_device(0, **changed), a_device(1)))
    assert hardware_digest((swapped, *nodes()[1:])) != hardware_digest(nodes())


def test_a_new_driver_changes_the_digest() -> None:
    newer = a_node("node1", versions={**a_node("x").versions, "driver": "581"})
    assert hardware_digest((newer, *nodes()[1:])) != hardware_digest(nodes())


def test_hosts_and_gpus_that_were_not_measured_are_not_covered() -> None:
    seen = [("node1", "GPU-0"), ("node2", "GPU-new"), ("node5", "GPU-0"), ("node5", "GPU-1")]
    assert uncovered(REPORT, seen) == ("node2 (GPU-new)", "node5")
