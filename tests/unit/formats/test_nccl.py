from pathlib import Path

import pytest

from steelrail.errors import InputError
from steelrail.formats.nccl import Choice, GpuNode, NetNode, parse_log, parse_topology
from steelrail.formats.nccl import Path as Way

DATA = Path(__file__).parents[2] / "data"


def test_a_log_names_version_network_channels_and_start() -> None:
    said = parse_log((DATA / "nccl-info-default-2ranks.log").read_text())
    assert (said.version, said.network) == ("2.28.9+cuda13.0", "Socket")
    assert (said.num_channels, said.num_nvls_channels, said.num_p2p_channels) == (24, 0, 32)
    assert said.init_seconds == 0.30


def test_a_log_says_how_each_rank_reaches_the_other() -> None:
    said = parse_log((DATA / "nccl-info-default-2ranks.log").read_text())
    assert set(said.paths) == {Way(0, 1, "P2P/CUMEM"), Way(1, 0, "P2P/CUMEM")}
    assert said.transports == ("P2P/CUMEM",)


def test_a_log_says_which_algorithm_a_message_got() -> None:
    said = parse_log((DATA / "nccl-info-graph-rank0.log").read_text())
    assert said.choices == (Choice("AllReduce", 4, "RING", "LL", 1),)


def test_network_paths_between_nodes_are_told_without_device_numbers() -> None:
    lines = (
        "h:1:2 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IB/3/GDRDMA\n"
        "h:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 9[1] [send] via NET/Socket/0\n"
    )
    assert parse_log(lines).transports == ("NET/IB/GDRDMA", "NET/Socket")


def test_an_empty_log_says_nothing() -> None:
    said = parse_log("")
    assert (said.version, said.num_channels, said.paths, said.init_seconds) == (None, None, (), None)


def test_a_topology_of_a_virtual_machine_has_none_where_paths_are_hidden() -> None:
    topology = parse_topology((DATA / "nccl-topo.xml").read_text())
    assert topology.gpus == (
        GpuNode(0, "0000:00:06.0", 90, None, None, ((None, 18),)),
        GpuNode(1, "0000:00:07.0", 90, None, None, ((None, 18),)),
    )
    assert topology.nets == (NetNode("eth0", 10.0, False),)


def test_a_topology_of_a_bare_host_keeps_its_paths() -> None:
    text = (
        '<system version="1"><cpu numaid="1"><pci busid="0000:18:00.0" link_width="16"><pci busid="0000:1a:00.0" '
        'link_width="16"><gpu dev="3" sm="90"><nvlink target="0000:07:00.0" count="6"/></gpu></pci></pci>'
        '<nic><net name="mlx5_0" speed="400000" gdr="1"/></nic></cpu></system>'
    )
    topology = parse_topology(text)
    assert topology.gpus == (GpuNode(3, "0000:1a:00.0", 90, 1, 16, (("0000:07:00.0", 6),)),)
    assert topology.nets == (NetNode("mlx5_0", 400.0, True),)


@pytest.mark.parametrize("text", ["", "<graphs/>", "<system", '<!DOCTYPE a [<!ENTITY b "c">]><system/>'])
def test_what_is_no_topology_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_topology(text)
