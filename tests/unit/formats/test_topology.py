from pathlib import Path

import pytest

from steelrail.errors import ClusterError
from steelrail.formats.topology import Switch, expand_hosts, leaf_of, leaf_of_address, parse_topology

DATA = Path(__file__).parents[2] / "data"


def test_scontrol_output_becomes_switches_with_expanded_hosts() -> None:
    switches = parse_topology((DATA / "scontrol-show-topology.txt").read_text())
    assert switches == (
        Switch("leaf1", 0, ("node1", "node2", "node3", "node4"), ()),
        Switch("leaf2", 0, ("node5", "cpu1"), ()),
        Switch("spine", 1, ("cpu1", "node1", "node2", "node3", "node4", "node5"), ("leaf1", "leaf2")),
    )


def test_a_host_hangs_on_its_leaf_and_not_on_the_spine_above() -> None:
    switches = parse_topology((DATA / "scontrol-show-topology.txt").read_text())
    assert (leaf_of("node3", switches), leaf_of("cpu1", switches), leaf_of("stranger", switches)) == (
        "leaf1",
        "leaf2",
        None,
    )


def test_topology_conf_lines_without_levels_tell_leaves_by_their_nodes() -> None:
    text = "# a comment\nSwitchName=a Nodes=n[1-2]\nSwitchName=top Switches=a\n"
    assert [switch.level for switch in parse_topology(text)] == [0, 1]


def test_a_flat_network_has_no_switches() -> None:
    assert parse_topology("slurm_load_topo error: topology/none\n") == ()


@pytest.mark.parametrize(
    ("address", "pattern", "leaf"),
    [
        ("spine.leaf1.node3", "switch.switch.node", "leaf1"),
        ("leaf1.node3.example.org", "switch.node", "leaf1"),
        ("node3", "node", None),
        ("", "", None),
        ("spine", "switch.switch.node", None),
    ],
)
def test_the_last_switch_of_slurms_address_is_the_leaf(address: str, pattern: str, leaf: str | None) -> None:
    assert leaf_of_address(address, pattern) == leaf


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node[1-3,7],cpu1", ("node1", "node2", "node3", "node7", "cpu1")),
        ("gpu-[08-10]", ("gpu-08", "gpu-09", "gpu-10")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("node1-ib.example", ("node1-ib.example",)),
        ("", ()),
    ],
)
def test_host_lists_expand_as_slurm_expands_them(text: str, hosts: tuple[str, ...]) -> None:
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize("text", ["node[1-3", "node1]", "node[a-b]", "node[5-1]", "node[1-999999999]"])
def test_malformed_or_absurd_host_lists_are_refused(text: str) -> None:
    with pytest.raises(ClusterError):
        expand_hosts(text)
