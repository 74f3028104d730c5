import threading

import pytest
import torch
import torch.distributed as dist

from steelrail.clients.meeting import connect, meet
from steelrail.clients.ranks import Master, RankPlace, free_port
from steelrail.errors import NodeError


def place(rank: int, world_size: int, num_nodes: int) -> RankPlace:
    per_node = world_size // num_nodes
    return RankPlace(rank, world_size, rank % per_node, rank // per_node, num_nodes, f"node{rank // per_node}")


def test_ranks_that_do_not_come_are_named_with_their_nodes_in_the_callers_kind_of_error() -> None:
    with pytest.raises(NodeError, match=r"without ranks \[1, 2, 3\] of nodes \[0, 1\] .*after 1 s"):
        meet(place(0, 4, 2), Master("127.0.0.1", free_port()), 1.0, NodeError)


def test_whoever_comes_finds_who_was_there_before() -> None:
    at = Master("127.0.0.1", free_port())
    other = threading.Thread(target=meet, args=(place(1, 2, 2), at, 20.0, NodeError))
    other.start()
    store = meet(place(0, 2, 2), at, 20.0, NodeError)
    other.join(20.0)
    assert [store.get(f"here/{rank}") for rank in range(2)] == [b"node0", b"node1"]


def test_ranks_that_met_make_the_default_group_there() -> None:
    alone = place(0, 1, 1)
    connect(meet(alone, Master("127.0.0.1", free_port()), 20.0, NodeError), "x", alone, torch.device("cpu"), 20.0)
    try:
        assert (dist.get_backend(), dist.get_world_size(), dist.get_rank()) == ("gloo", 1, 0)
    finally:
        dist.destroy_process_group()
