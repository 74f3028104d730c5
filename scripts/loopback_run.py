"""Write a run file for the one GPU host of a loopback cluster: ``loopback_run.py RUN_FILE FAST_FOLDER OUTPUT``.

The same run with as many ranks, all of them on one node.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from steelrail.clients.ranks import MASTER_ADDR
from steelrail.config.load import load_run
from steelrail.config.schema import Run

ENDPOINT = "http://127.0.0.1:8333"
# The name that Slurm has for the node, which the ranks would go by, leads nowhere here.
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", MASTER_ADDR: "127.0.0.1"}


def derive(run: Run, fast: str, name: str) -> Run:
    """Return ``run`` under another name with all its ranks on one node."""
    shape = run.shape.model_copy(update={"nodes": 1, "ranks_per_node": run.shape.world_size})
    changes = {
        "name": name,
        "shape": shape,
        "slurm": run.slurm.model_copy(update={"environment": run.slurm.environment | ENVIRONMENT}),
        "node": run.node.model_copy(update={"nvme": fast}),
        "store": run.store.model_copy(update={"endpoint": ENDPOINT}),
    }
    return run.model_copy(update=changes)


def main() -> None:
    source, fast, output = sys.argv[1:]
    run = derive(load_run(source), fast, Path(output).stem)
    # What this says is checked when it is read.
    text = yaml.safe_dump(run.model_dump(mode="json", exclude_unset=True), sort_keys=False)
    Path(output).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
