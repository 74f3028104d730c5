import pytest
import torch
import torch.distributed as dist

from steelrail.clients.ranks import Master, RankPlace, free_port
from steelrail.errors import FabricError, NodeError
from steelrail.launch import meet, probes
from steelrail.launch.freeze import Frozen, package_folder

ALONE = RankPlace(rank=0, world_size=1, local_rank=0, node_rank=0, num_nodes=1, host="node1")


@pytest.fixture
def group():
    meet.join(ALONE, Master("127.0.0.1", free_port()), torch.device("cpu"), 20.0)
    yield
    dist.destroy_process_group()


def on_leaves(monkeypatch, *leaves):
    """Let the ranks of a gathered answer stand on these leaf switches."""
    facts = [(f"node{index}", "", leaf) for index, leaf in enumerate(leaves)]
    monkeypatch.setattr(meet, "_gather", lambda value: facts if len(value) == 3 else [value])


def test_ranks_of_one_leaf_pass_and_the_leaf_is_recorded(demo, group, monkeypatch):
    monkeypatch.setenv("SLURM_TOPOLOGY_ADDR", "spine.leaf1.node1")
    monkeypatch.setenv("SLURM_TOPOLOGY_ADDR_PATTERN", "switch.switch.node")
    assert meet.check_company(demo, ALONE, torch.device("cpu")).startswith("leaf switches: leaf1; CPUs of rank 0: ")


def test_a_downgrade_of_the_rack_is_refused_where_it_is_required(demo, change, group, monkeypatch):
    on_leaves(monkeypatch, "leaf1", "leaf2")
    with pytest.raises(FabricError, match=r"rack must be one leaf switch, is 2 \(leaf1, leaf2\)"):
        meet.check_company(change(demo, "shape", rack="required"), ALONE, torch.device("cpu"))


def test_a_downgrade_of_the_rack_is_recorded_where_it_is_preferred(demo, group, monkeypatch):
    on_leaves(monkeypatch, "leaf1", "leaf2")
    assert "leaf1, leaf2" in meet.check_company(demo, ALONE, torch.device("cpu"))


def test_a_node_whose_clock_is_off_is_named(demo, group, monkeypatch):
    place = RankPlace(0, 2, 0, 0, 2, "node1")
    monkeypatch.setattr(meet, "_gather", lambda value: [("node1", 100.0), ("node2", 107.5)])
    with pytest.raises(NodeError, match=r"is 7.5 s off \(node2\)"):
        meet.check_company(demo, place, torch.device("cpu"))


def test_without_a_topology_no_leaf_is_made_up(monkeypatch):
    monkeypatch.delenv("SLURM_TOPOLOGY_ADDR", raising=False)
    assert meet._leaf() == ""


def test_ranks_that_do_not_come_are_named():
    place = RankPlace(rank=0, world_size=2, local_rank=0, node_rank=0, num_nodes=2, host="node1")
    with pytest.raises(NodeError, match=r"must be complete, is without ranks \[1\]"):
        meet.join(place, Master("127.0.0.1", free_port()), torch.device("cpu"), 1.0)


def test_a_variable_of_the_run_file_that_did_not_arrive_is_named(demo, monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    frozen = Frozen(str(package_folder().parent), "", "", "", None)
    with pytest.raises(NodeError, match="environment variable GLOO_SOCKET_IFNAME must be 'eth0', is None"):
        probes.require_environment(demo, frozen)


def test_code_that_is_not_the_frozen_one_is_refused(demo, monkeypatch, tmp_path):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    with pytest.raises(NodeError, match="code must be the frozen one"):
        probes.require_environment(demo, Frozen(str(tmp_path), "", "", "", None))
    probes.require_environment(demo, Frozen(str(package_folder().parent), "", "", "", None))
