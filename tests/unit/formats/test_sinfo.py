from pathlib import Path

import pytest

from steelrail.formats.sinfo import Gres, parse_gres, parse_nodes

DATA = Path(__file__).parents[2] / "data" / "slurm"


def test_a_partition_offers_its_nodes_with_gpus_and_state():
    offers = parse_nodes((DATA / "sinfo-gpu.txt").read_text())
    assert [offer.name for offer in offers] == ["node1", "node2", "node3", "node4", "node5"]
    assert [offer.count("gpu") for offer in offers] == [16] * 5
    assert [offer.up for offer in offers] == [True, True, True, True, False]


def test_a_gpu_is_counted_by_type_when_the_type_is_named():
    (offer,) = parse_nodes("n1|idle|64|gpu:h100:8,gpu:a100:4\n")
    assert (offer.count("gpu"), offer.count("gpu:h100"), offer.count("gpu:b200")) == (12, 8, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(null)", ()),
        ("gpu:16", (Gres("gpu", "", 16),)),
        ("gpu:h100:8(S:0-1),nvme:2", (Gres("gpu", "h100", 8), Gres("nvme", "", 2))),
        ("gpu", (Gres("gpu", "", 1),)),
        ("gpu:h100:4(IDX:0,2-3)", (Gres("gpu", "h100", 4),)),
    ],
)
def test_resources_are_read_with_type_count_and_sockets(text, expected):
    assert parse_gres(text) == expected


def test_a_partition_that_does_not_exist_offers_nothing():
    assert parse_nodes("") == ()
