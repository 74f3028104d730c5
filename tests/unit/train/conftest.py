"""All training scenarios run once, on real ranks; the tests look at what they left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WAIT = {"kind": "wait", "seconds": 20.0, "rank": -1, "attempt": 1}
EVERY_STEP = {"checkpoints__every_steps": 1}
NAN = {"kind": "nan", "rank": 1, "attempt": 0}
SKIP = {**EVERY_STEP, "train__bad_step": {"policy": "skip", "limit": 1}, "drills": [{**NAN, "at_step": 3}]}
SPIKE = {**EVERY_STEP, "train__bad_step": {"policy": "skip", "spike_factor": 1.02, "spike_window": 2}}
ROLLS = {**EVERY_STEP, "train__bad_step": {"policy": "roll_back", "back_steps": 1, "leave_out_steps": 2, "limit": 2}}
SCALED = {"factor": 8.0, "original_positions": 8}
SCENARIOS: dict[str, dict[str, Any]] = {
    "one": {"ranks": 1, "export": True},
    "again": {"ranks": 1},
    "two": {"ranks": 2},
    "four": {"ranks": 4},
    "accumulated": {"ranks": 1, "changes": {"train__micro_batch_sequences": 4}},
    "recomputed": {"ranks": 1, "changes": {"train__recompute": True}},
    "replicas": {"ranks": 4, "replicas": 2},
    "bf16": {"ranks": 2, "changes": {"train__precision": "bf16"}},
    "tied": {"ranks": 4, "changes": {"train__model": "tied"}, "export": True},
    # Into memory that holds nothing, with initial weights that are gone by now.
    "resumed": {
        "ranks": 2,
        "start": 3,
        "attempt": 2,
        "resume_from": "two",
        "changes": {"train__init_from": "/nowhere"},
    },
    "missing": {"ranks": 1, "changes": {"train__init_from": "/nowhere"}},
    "stopped": {"ranks": 2, "stop": 1},
    "save_now": {"ranks": 2, "save": 1},
    "poisoned": {"ranks": 2, "poison": 2},
    "skips": {"ranks": 2, "changes": SKIP, "epoch": 20},
    "left_out": {"ranks": 2, "changes": EVERY_STEP, "without_update": [3]},
    "skips_again": {"ranks": 2, "changes": SKIP, "resume_from": "skips", "start": 2, "attempt": 2},
    "skipped_before": {"ranks": 2, "changes": SKIP, "resume_from": "skips", "start": 3, "attempt": 2},
    "stops": {"ranks": 2, "changes": {**EVERY_STEP, "drills": SKIP["drills"]}},
    "too_many": {"ranks": 2, "changes": {**SKIP, "drills": [{**NAN, "at_step": 3}, {**NAN, "at_step": 5}]}},
    "spikes": {"ranks": 2, "changes": SPIKE, "noise": 5},
    "spikes_again": {
        "ranks": 2,
        "changes": SPIKE,
        "noise": 5,
        "resume_from": "spikes",
        "start": 4,
        "attempt": 2,
    },
    "rolls": {"ranks": 2, "changes": {**ROLLS, "drills": SKIP["drills"]}, "epoch": 20},
    # From before the bad step, in one go and after another restart. The drill spoils the step that is left out too.
    "rolled": {
        "ranks": 2,
        "changes": {**ROLLS, "drills": SKIP["drills"]},
        "resume_from": "rolls",
        "start": 1,
        "attempt": 2,
        "leave_out": [2, 3],
        "rollbacks": 1,
    },
    "rolled_again": {
        "ranks": 2,
        "changes": {**ROLLS, "drills": SKIP["drills"]},
        "resume_from": "rolled",
        "start": 2,
        "attempt": 3,
        "leave_out": [2, 3],
        "rollbacks": 1,
    },
    "left_out_both": {"ranks": 2, "changes": EVERY_STEP, "without_update": [2, 3]},
    "rolled_too_often": {"ranks": 2, "changes": {**ROLLS, "drills": SKIP["drills"]}, "rollbacks": 2},
    "at_odds": {"ranks": 2, "changes": SPIKE, "tail": [[1.0, 1.0], [9.0, 9.0]]},
    "raised": {"ranks": 1, "changes": {"drills": [{"kind": "raise", "where": "productive", "at_step": 4}]}},
    "exited": {"ranks": 1, "changes": {"drills": [{"kind": "exit", "where": "data_wait", "at_step": 2}]}},
    "waits": {
        "ranks": 2,
        "stopped_clock": True,
        "changes": {
            "drills": [
                {**WAIT, "where": "productive", "at_step": 2},
                {**WAIT, "where": "data_wait", "at_step": 3},
                {**WAIT, "where": "communication", "at_step": 4},
                {**WAIT, "where": "checkpoint", "at_step": 5},
            ]
        },
    },
    "files": {"ranks": 3, "only_export": 6000, "changes": {"train__global_batch_sequences": 3}},
    "read": {
        "ranks": 3,
        "only_export": 10**9,
        "changes": {"train__global_batch_sequences": 3, "train__init_from": "files"},
    },
}
TIED = {
    "dim": 24,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 1,
    "ffn_dim": 40,
    "vocab_size": 61,
    "rope_scaling": SCALED,
}


def _filled_in(scenarios: dict[str, dict[str, Any]], folder: Path) -> dict[str, dict[str, Any]]:
    filled = json.loads(json.dumps(scenarios))
    filled["tied"]["changes"]["train__model"] = {**TIED, "tied_embeddings": True}
    for scenario in filled.values():
        if "resume_from" in scenario:
            scenario["resume_from"] = str(folder / scenario["resume_from"])
    filled["read"]["changes"]["train__init_from"] = str(folder / "files" / "export")
    return filled


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of every scenario, by name (see ``ranks.results_of``)."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "scenarios.json").write_text(json.dumps(_filled_in(SCENARIOS, folder)))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(Path(__file__).with_name("ranks.py")), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return results
