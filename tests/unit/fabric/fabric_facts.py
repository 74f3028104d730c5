"""Facts for fabric tests."""

from itertools import combinations

from steelrail.artifacts.fabric import DeviceFact, Measurement, NodeFact, PairMeasurement
from steelrail.config.load import parse_run
from steelrail.config.schema import Run
from steelrail.fabric.facts import Facts

RUN = """
name: t
corpus: {paths: [a.parquet]}
shards: {tokenizer: t.json}
shape: {nodes: 4, gpus_per_node: 2, ranks_per_node: 2, rack: %(rack)s, device: %(device)s, rail_gbit_per_s: 80.0}
store: {bucket: bucket}
train:
  model: {dim: 64, num_layers: 2, num_heads: 4, num_kv_heads: 2, ffn_dim: 128, vocab_size: 256}
  optimizer: {learning_rate: 0.001}
  steps: 2
  global_batch_sequences: 8
  precision: fp32
"""


def a_run(device: str = "cuda", rack: str = "preferred") -> Run:
    return parse_run(RUN % {"device": device, "rack": rack}, "test")


def a_device(index: int, **changed: object) -> DeviceFact:
    fields = {
        "index": index, "name": "NVIDIA H100", "uuid": f"GPU-{index}", "memory_bytes": 80 * 10**9,
        "matrix_seconds_p50": 0.001, "matrix_digest": "same",
    }  # fmt: skip
    return DeviceFact.model_validate({**fields, **changed})


def a_node(host: str, ranks: tuple[int, ...] = (0, 1), **changed: object) -> NodeFact:
    fields = {
        "host": host, "leaf": "leaf1", "ranks": ranks, "devices": tuple(a_device(index) for index in range(2)),
        "nics": ("eth0",), "versions": {"torch": "2.11", "nccl": "2.28", "driver": "580", "kernel": "6"},
    }  # fmt: skip
    return NodeFact.model_validate({**fields, **changed})


def nodes(count: int = 4) -> tuple[NodeFact, ...]:
    return tuple(a_node(f"node{index + 1}", (2 * index, 2 * index + 1)) for index in range(count))


def a_pair(first: str, second: str, gb_per_s: float, rail: int = 0, intact: bool = True) -> PairMeasurement:
    return PairMeasurement(
        first=first, second=second, size_bytes=1000, gb_per_s=gb_per_s, seconds_p50=1e-6 / gb_per_s,
        seconds_p99=1e-6 / gb_per_s, rail=rail, intact=intact,
    )  # fmt: skip


def all_pairs(
    hosts: list[str], slow: dict[frozenset[str], float] | None = None, slow_host: str = "", rails: int = 1
) -> tuple[PairMeasurement, ...]:
    """Every pair at about 10 GB/s, those of ``slow`` and of ``slow_host`` (on all rails) at 1."""
    found = []
    for rail in range(rails):
        for number, (first, second) in enumerate(combinations(hosts, 2)):
            usual = 1.0 if slow_host in (first, second) else 10.0 + 0.1 * number
            found.append(a_pair(first, second, (slow or {}).get(frozenset((first, second)), usual), rail))
    return tuple(found)


def a_gather(p50: float, p99: float, collective: str = "all_gather") -> Measurement:
    return Measurement(
        collective=collective, size_bytes=1000, dtype="bf16", ranks=tuple(range(8)), algorithm="RING SIMPLE",
        library="nccl 2.28 (NET/IB)", repeats=20, seconds_p50=p50, seconds_p95=p99, seconds_p99=p99,
        busbw_gb_per_s=1.0, what="block",
    )  # fmt: skip


def some_facts(run: Run, **changed: object) -> Facts:
    fields = {
        "run": run.name, "key": "k", "backend": "nccl", "device": run.shape.device, "nodes": nodes(),
        "pairs": all_pairs([f"node{number}" for number in range(1, 5)]), "world": (a_gather(1e-3, 1.2e-3),),
        "started": 100.0, "measured": 200.0, "seconds": {"pairs": 1.0},
    }  # fmt: skip
    return Facts.model_validate({**fields, **changed})
