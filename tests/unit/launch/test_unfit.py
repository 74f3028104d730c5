from decimal import Decimal

import pytest

from steelrail.artifacts.fabric import FabricReport
from steelrail.formats.sinfo import parse_nodes
from steelrail.launch.unfit import fitting_others, leaving_out, say_replaced, say_too_few

SIX = "".join(f"node{number}|idle|4|gpu:16\n" for number in range(1, 7))


@pytest.fixture
def report():
    known = {"exclude": ("node3",), "job_id": "42", "measured": 231.0}
    started = type("Started", (), {"started": 200.0})
    return FabricReport.model_construct(**known, provenance=started)


def test_those_that_may_take_a_nodes_place_are_up_fit_the_shape_and_are_not_ruled_out(demo, change):
    text = SIX.replace("node4|idle", "node4|down*").replace("node5|idle|4|gpu:16", "node5|idle|4|gpu:8")
    run = change(demo, "slurm", exclude=("node6",))
    assert fitting_others(run, parse_nodes(text), ("node3",)) == ("node1", "node2")


def test_a_node_at_work_may_take_a_place_once_it_is_free(demo):
    assert "node4" in fitting_others(demo, parse_nodes(SIX.replace("node4|idle", "node4|allocated")), ())


def test_the_run_files_own_exclusions_stay(demo, change):
    run = leaving_out(change(demo, "slurm", exclude=("node9", "node3")), ("node3", "node1"))
    assert run.slurm.exclude == ("node9", "node3", "node1")


def test_what_is_left_out_is_said_with_its_cost_and_what_remains(demo, report):
    said = say_replaced(demo, report, ("node1", "node2", "node4", "node5", "node6"), Decimal("0.07"))
    assert "leaving out node3, which job 42 found unfit, here and in training" in said
    assert "for 4 of node[1-2,4-6] (1 spare)" in said
    assert "at most 6.40 GPU-hours, $25.20; the first one measured for 31.0 s" in said
    assert said.endswith("Slurm may wait 1 min for one leaf switch first")


def test_without_a_price_hours_are_said(demo, report, change):
    run = change(demo, "shape", rack="any")
    said = say_replaced(run, report, ("node1", "node2", "node4", "node5"), None)
    assert said.endswith("no spare is left for a node that is lost). It costs at most 6.40 GPU-hours; "
                         "the first one measured for 31.0 s")  # fmt: skip


def test_too_few_others_are_named(demo, report):
    assert "4 nodes are needed, and of the others in partition gpu 2 (node[1-2])" in say_too_few(
        demo, report, ("node1", "node2")
    )
