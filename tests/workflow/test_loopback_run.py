"""The demo's run file where namespaces are refused (scripts/loopback_run.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from steelrail.config.load import load_run

PROJECT = Path(__file__).resolve().parents[2]


def test_a_loopback_run_trains_the_same_with_all_its_ranks_on_one_node(tmp_path: Path) -> None:
    source, output = PROJECT / "config" / "demo.yaml", tmp_path / "demo-loopback.yaml"
    subprocess.run([sys.executable, PROJECT / "scripts" / "loopback_run.py", source, "/fast", output], check=True)
    demo, ours = load_run(source), load_run(output)
    assert ("demo-loopback", 1, "/fast") == (ours.name, ours.shape.nodes, ours.node.nvme)
    assert (demo.shape.world_size, demo.corpus, demo.train) == (ours.shape.world_size, ours.corpus, ours.train)
