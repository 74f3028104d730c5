import math

from fabric_facts import a_pair, a_run, all_pairs, some_facts

from steelrail.fabric.edge import make_report
from steelrail.fabric.heatmap import draw_heatmap, pair_matrix


def test_the_matrix_is_symmetric_sorted_naturally_and_empty_on_the_diagonal() -> None:
    names, rates = pair_matrix([a_pair("n10", "n2", 5.0), a_pair("n2", "n1", 3.0)])
    assert names == ["n1", "n2", "n10"]
    assert rates[0, 1] == rates[1, 0] == 3.0
    assert math.isnan(rates[0, 0]) and math.isnan(rates[0, 2])


def test_of_several_rails_the_slowest_is_shown() -> None:
    assert pair_matrix([a_pair("a", "b", 5.0, 0), a_pair("a", "b", 2.0, 1)])[1][0, 1] == 2.0


def test_the_picture_names_hosts_and_unit_and_is_the_same_every_time() -> None:
    report = make_report(some_facts(a_run()), a_run(), "1")
    picture = draw_heatmap(report)
    text = picture.decode()
    assert text.startswith("<?xml") and "GB/s" in text
    assert all(f">{node.host}<" in text for node in report.nodes)
    assert draw_heatmap(report) == picture


def test_a_single_rank_and_a_large_cluster_can_be_drawn() -> None:
    lone = make_report(some_facts(a_run(), pairs=()), a_run(), "1")
    many = make_report(some_facts(a_run(), pairs=all_pairs([f"n{number}" for number in range(40)])), a_run(), "1")
    assert b"no links" in draw_heatmap(lone) and len(draw_heatmap(many)) > 1000
