"""The chain without Slurm (scripts/demo_local.py): every stage real, on this host, by whoever runs the tests."""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

PROJECT = Path(__file__).resolve().parents[2]
STEPS = 6
CANARY = "canary5ec2e7canary5ec2e7canary5ec2e7cana"


@dataclass(frozen=True)
class Done:
    """What the demo said and left."""

    said: str
    folder: Path

    def json(self, path: str) -> dict[str, Any]:
        read: dict[str, Any] = json.loads((self.folder / path).read_text())
        return read


def _demo(results: Path) -> Done:
    argv = [sys.executable, str(Path(__file__).with_name("canary_demo.py")), CANARY, str(STEPS), str(results)]
    environment = {**os.environ, "HF_TOKEN": CANARY, "AWS_SECRET_ACCESS_KEY": CANARY}
    done = subprocess.run(argv, cwd="/", capture_output=True, text=True, timeout=280, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return Done(done.stdout, results / "demo-local")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return _demo(tmp_path_factory.mktemp("local") / "results")


def test_two_local_ranks_train_every_step_and_the_heldout_loss_falls(demo: Done) -> None:
    rows = pq.read_table(demo.folder / "train" / "metrics.parquet", columns=["step"]).column("step").to_pylist()
    record = demo.json("train/record.json")
    assert (list(range(1, STEPS + 1)), "done", STEPS) == (rows, record["ending"], record["final_step"])
    assert record["heldout_last"] < record["heldout_first"]


def test_the_server_leaves_nothing_behind(tmp_path: Path) -> None:
    code = """
import pathlib, sys, time
sys.path.insert(0, "scripts")
import demo_local
expected = []
place = demo_local.grpc_sockets
demo_local.grpc_sockets = lambda ports: expected.extend(place(ports)) or expected
with demo_local.s3_server(pathlib.Path(sys.argv[1])):
    deadline = time.monotonic() + 60
    while not all(one.is_socket() for one in expected):
        assert time.monotonic() < deadline
        time.sleep(0.1)
print(len(expected), any(one.exists() for one in expected))
"""
    argv = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "4 False\n"


def test_without_slurms_accounts_the_bill_is_unavailable_and_no_money_is_named(demo: Done) -> None:
    summary = demo.json("cost/summary.json")
    assert ("unavailable", None, {}) == (summary["status"], summary["total_micro_usd"], summary["categories"])
    assert "Cost: unavailable" in demo.said
    assert "$" not in demo.said


def test_the_run_folder_is_closed_to_others(demo: Done) -> None:
    stages = ("corpus", "shards", "fabric", "train", "cost")
    ours = [demo.folder, *(path for stage in stages for path in (demo.folder / stage).rglob("*"))]
    assert [] == [path for path in ours if stat.S_IMODE(path.lstat().st_mode) & 0o077 and not path.is_symlink()]


def test_the_secret_is_found_nowhere(demo: Done) -> None:
    """Not in what the run said, its folder, NVMe, logs, submitit's pickles, the server's disk, nor in any object."""
    files = [path for path in demo.folder.rglob("*") if path.is_file() and not path.is_symlink()]
    sought = [CANARY.encode(), base64.b64encode(CANARY.encode()).rstrip(b"="), CANARY.encode("utf-16-le")]
    assert {"nvme", "store", "train", "shards"} <= {path.relative_to(demo.folder).parts[0] for path in files}
    assert [] == [path for path in files if any(one in path.read_bytes() for one in sought)]
    assert CANARY not in demo.said
    seen = json.loads((demo.folder.parent / "objects.json").read_text())
    assert len(seen["objects"]) > 10 and [] == seen["holding"]


def test_the_server_ends_with_the_demo(demo: Done) -> None:
    command_lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if _readable(path)]
    assert [] == [line for line in command_lines if str(demo.folder).encode() in line]


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True
