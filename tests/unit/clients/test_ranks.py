import socket

import pytest

from steelrail.clients.ranks import Master, RankPlace, free_port, master_from, place_from
from steelrail.errors import ClusterError

STEP = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "10",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_NNODES": "5",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURMD_NODENAME": "node3",
}


def test_a_steps_own_counts_win_over_its_jobs() -> None:
    place = place_from(STEP, "whatever.example.org")
    assert place == RankPlace(5, 8, 1, 2, 4, "node3")
    assert place.ranks_per_node == 2


def test_the_order_of_nodes_is_the_one_given_where_each_has_one_task() -> None:
    alone = {**STEP, "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2", "SLURM_LOCALID": "0"}
    given = {**alone, "STEELRAIL_NODES": "node1,node3,node5,node4"}
    assert place_from(alone, "x") == RankPlace(2, 4, 0, 2, 4, "node3")
    assert place_from(given, "x") == RankPlace(1, 4, 0, 1, 4, "node3")


def test_an_explicit_rank_wins_inside_a_slurm_job() -> None:
    env = {**STEP, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert place_from(env, "head.example.org") == RankPlace(3, 4, 1, 1, 2, "head")


def test_local_ranks_without_a_local_world_size_are_on_one_node() -> None:
    env = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3"}
    assert place_from(env, "here") == RankPlace(3, 4, 3, 0, 1, "here")


def test_several_nodes_of_one_machine_are_told_apart_by_a_given_host_name() -> None:
    env = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "STEELRAIL_HOST": "b"}
    assert place_from(env, "here").host == "b"


@pytest.mark.parametrize(
    "env",
    [
        {},
        {**STEP, "SLURM_PROCID": "x"},
        {**STEP, "SLURM_PROCID": "8"},
        {**STEP, "SLURM_STEP_NUM_TASKS": "7", "SLURM_PROCID": "0"},
        {key: value for key, value in STEP.items() if key != "SLURM_LOCALID"},
    ],
)
def test_a_missing_or_impossible_place_is_refused(env: dict[str, str]) -> None:
    with pytest.raises(ClusterError):
        place_from(env, "here")


def test_the_masters_own_variables_win_over_torchruns() -> None:
    env = {"STEELRAIL_MASTER_ADDR": "node1", "STEELRAIL_MASTER_PORT": "29400", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert master_from(env) == Master("node1", 29400)


@pytest.mark.parametrize(
    ("address", "port"), [("", "1"), ("a b", "1"), ("a", "0"), ("a", "65536"), ("a", "x"), ("a", "")]
)
def test_a_meeting_place_that_cannot_be_is_refused(address: str, port: str) -> None:
    with pytest.raises(ClusterError):
        master_from({"MASTER_ADDR": address, "MASTER_PORT": port})


def test_a_free_port_can_be_listened_on() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
        listener.listen()
