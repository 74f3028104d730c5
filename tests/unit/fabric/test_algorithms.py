from pathlib import Path

from fabric_facts import a_gather

from steelrail.fabric.algorithms import name_algorithms
from steelrail.formats.nccl import parse_log

LOG = Path(__file__).parents[2] / "data" / "nccl-info-graph-rank0.log"


def test_a_measurement_gets_the_algorithm_that_nccl_chose_for_its_size() -> None:
    small = a_gather(1.0, 1.0, "all_reduce").model_copy(update={"size_bytes": 4, "algorithm": "default"})
    named = name_algorithms([small], parse_log(LOG.read_text()))[0]
    assert (named.algorithm, named.library) == ("RING LL", "nccl 2.28 (NET/IB) (P2P/CUMEM)")


def test_sizes_counted_per_rank_are_found_too() -> None:
    log = "h:1:2 [0] NCCL INFO AllGather: 125 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}\n"
    assert name_algorithms([a_gather(1.0, 1.0)], parse_log(log))[0].algorithm == "NVLS SIMPLE"


def test_without_a_word_from_nccl_nothing_is_claimed() -> None:
    assert name_algorithms([a_gather(1.0, 1.0)], parse_log(""))[0] == a_gather(1.0, 1.0)
