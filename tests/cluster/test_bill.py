"""A known wait put into each category in turn is found there, and nowhere else."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Cluster, Project

WAIT = float(os.environ.get("STEELRAIL_WAIT_SECONDS", "6"))
GPUS = 16
ONE_RANK = (
    ("nodes: 4, gpus_per_node: 16, ranks_per_node: 2", "nodes: 1, gpus_per_node: 16, ranks_per_node: 1"),
    ("steps: 200", "steps: 16"),
    ("every_steps: 25", "every_steps: 5"),
    ("global_batch_sequences: 8", "global_batch_sequences: 2"),
    ("heldout_every_steps: 50", "heldout_every_steps: 16"),
)
WAITED = ("startup", "fabric_check", "staging", "restore", "idle", "lost", "data_wait", "communication", "checkpoint")


def drill(where: str, at_step: int = 0, attempt: int = 1) -> dict[str, Any]:
    return {"kind": "wait", "where": where, "seconds": WAIT, "at_step": at_step, "attempt": attempt}


CATEGORIES = (*WAITED, "productive", "replayed")
NOTHING = {"gpu_seconds": 0.0}
# What computes or imports varies by itself from run to run on two shared cores; what only waits does not.
VARIES = {"startup": 3.0, "fabric_check": 3.0, "productive": 3.0}

# Step 8 fails once after the checkpoint of step 5: attempt 2 makes steps 6 and 7 again.
FAULT = {"kind": "raise", "where": "productive", "at_step": 8, "attempt": 1}
# A save ends step 5; the loop's other moments are put at step 3.
STEPS = {"data_wait": 3, "communication": 3, "checkpoint": 5}
WAITS = [drill(where, STEPS.get(where, 0)) for where in WAITED] + [drill("productive", 3), drill("productive", 7, 2)]


def billed(project: Project, name: str, drills: list[dict[str, Any]]) -> dict[str, float]:
    """GPU-seconds a category of the training job of a run with these drills."""
    path = project.write_run(name, *ONE_RANK)
    path.write_text(path.read_text() + f"drills: {json.dumps(drills)}\n")
    done = project.snakemake(name)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    summary = project.json(f"{name}/cost/summary.json")
    assert 2 == summary["attempts"]
    assert summary["total_micro_usd"] == sum(one["micro_usd"] for one in summary["categories"].values())
    (job,) = project.json(f"{name}/train/record.json")["job_ids"]
    cut = [one["categories"] for one in summary["segments"] if one["job_id"] == job]
    return {category: sum(one.get(category, NOTHING)["gpu_seconds"] for one in cut) for category in CATEGORIES}


@pytest.mark.timeout(1500)
def test_a_known_wait_in_each_category_is_found_there_within_a_second(cluster: Cluster, project: Project) -> None:
    before = billed(project, "unwaited", [FAULT])
    after = billed(project, "waited", [FAULT, *WAITS])
    found = {name: (after[name] - before[name]) / GPUS for name in CATEGORIES}
    assert {name: pytest.approx(WAIT, abs=VARIES.get(name, 1.0)) for name in found} == found
