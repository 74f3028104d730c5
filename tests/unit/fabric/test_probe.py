from pathlib import Path

from fabric_facts import a_device

from steelrail.fabric.facts import RankFact, merge_nodes
from steelrail.fabric.probe import find_leaf, network_ports


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_ports_show_speed_rate_and_state_where_the_machine_tells(tmp_path: Path) -> None:
    put(tmp_path / "net/eth0/speed", "10000")
    put(tmp_path / "net/veth1/speed", "-1")
    put(tmp_path / "net/elsewhere/speed", "10000")
    put(tmp_path / "infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)")
    put(tmp_path / "infiniband/mlx5_0/ports/1/state", "4: ACTIVE")
    assert network_ports(tmp_path, ["lo", "veth1", "eth0", "hidden"]) == (
        "eth0 10000 Mb/s",
        "hidden",
        "veth1",
        "mlx5_0/1 400 Gb/sec (4X NDR) ACTIVE",
    )


def test_the_leaf_comes_from_slurms_address() -> None:
    env = {"SLURM_TOPOLOGY_ADDR": "spine.leaf1.node3", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"}
    assert find_leaf("node3", env) == "leaf1"


def test_ranks_of_a_host_become_one_node_in_rank_order() -> None:
    facts = [
        RankFact(rank=rank, host=host, leaf="l", device=a_device(rank % 2), nics=(), versions={})
        for rank, host in ((3, "b"), (0, "a"), (2, "b"), (1, "a"))
    ]
    assert [(node.host, node.ranks) for node in merge_nodes(facts)] == [("a", (0, 1)), ("b", (2, 3))]
