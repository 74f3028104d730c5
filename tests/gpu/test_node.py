"""Ranks forked from a process that has loaded everything get their GPUs: nothing of CUDA began before the fork."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

NUM_GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(NUM_GPUS == 0, reason="needs a GPU")
RANK = """
import os, torch
from steelrail.launch.rank import PRELOAD
def main(argv):
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    print("sum", torch.ones(1000, device=device).sum().item(), "on", device.index)
    return 0
"""


def test_ranks_forked_after_loading_compute_on_gpus_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "gpu_rank_of_node.py").write_text(RANK)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    env = os.environ | alone | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    argv = [sys.executable, "-u", "-m", "steelrail.launch.node", str(NUM_GPUS), str(tmp_path / "log")]
    done = subprocess.run(
        [*argv, "gpu_rank_of_node"], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    expected = [f"{index}: sum 1000.0 on {index}" for index in range(NUM_GPUS)]
    assert sorted(done.stdout.splitlines()) == expected
