"""The fabric job over NCCL, one rank on each GPU of this host. Skips itself where there is none."""

import os
import subprocess
import sys

import pytest
import torch

from steelrail.artifacts.files import read_artifact
from steelrail.clients.ranks import free_port
from steelrail.config.load import parse_run
from steelrail.config.schema import Run
from steelrail.fabric.facts import Facts
from steelrail.fabric.folder import JobFolder
from steelrail.fabric.judge import judge

NUM_GPUS = torch.cuda.device_count()
RANKS, DEVICE = max(1, NUM_GPUS), "cuda" if NUM_GPUS else "cpu"
pytestmark = pytest.mark.skipif(NUM_GPUS == 0, reason="no CUDA GPU here")
RUN = f"""
name: gpu
corpus: {{paths: [a.parquet]}}
shards: {{tokenizer: t.json}}
shape: {{nodes: 1, gpus_per_node: {NUM_GPUS}, ranks_per_node: {RANKS}, device: {DEVICE}}}
store: {{bucket: bucket}}
fabric: {{matrix_size: 4096, pair_bytes: 64000000}}
train:
  model: {{dim: 4096, num_layers: 2, num_heads: 32, num_kv_heads: 8, ffn_dim: 14336, vocab_size: 32768}}
  optimizer: {{learning_rate: 0.001}}
  steps: 2
  global_batch_sequences: {RANKS}
"""


@pytest.fixture(scope="module")
def run() -> Run:
    return parse_run(RUN, "test")


@pytest.fixture(scope="module")
def facts(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Facts:
    folder = JobFolder(tmp_path_factory.mktemp("job"))
    folder.run_file.write_text(run.model_dump_json())
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    master = {"STEELRAIL_MASTER_ADDR": "127.0.0.1", "STEELRAIL_MASTER_PORT": str(free_port())}
    argv = [sys.executable, "-m", "steelrail.launch.node", str(NUM_GPUS), str(folder.log)]
    module = ["steelrail.fabric.rank", str(folder.root)]
    assert subprocess.run([*argv, *module], env=os.environ | alone | master, timeout=200, check=False).returncode == 0
    return read_artifact(folder.report, Facts)


def test_every_gpu_is_found_once_and_multiplies_to_the_same_bits(facts: Facts) -> None:
    devices = [one for node in facts.nodes for one in node.devices]
    assert [one.index for one in devices] == list(range(NUM_GPUS))
    assert len({(one.name, one.matrix_digest) for one in devices}) == len({one.name for one in devices})


def test_every_pair_of_gpus_is_measured_and_intact(facts: Facts) -> None:
    assert len(facts.pairs) == NUM_GPUS * (NUM_GPUS - 1) // 2
    assert all(pair.intact and pair.gb_per_s > 1 for pair in facts.pairs)


def test_collectives_are_below_the_speed_of_light_and_named(facts: Facts) -> None:
    assert facts.backend == "nccl" and all(one.library.startswith("nccl 2") for one in facts.world)
    assert all(one.busbw_gb_per_s < 2000 for one in facts.world)


def test_a_sound_host_is_fit(facts: Facts, run: Run) -> None:
    assert [finding for finding in judge(facts, run).findings if finding.severity == "unfit"] == []
