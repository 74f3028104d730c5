"""Many ranks over gloo on the dev cluster: start them, kill one, see them go on, and take the bill.

usage: bench/on_dev_cluster.sh many_ranks.py [--ranks-per-node N] [--steps N] [--kill-at N] [--standby]

The demo's model and text, on four nodes. It waits for step ``--kill-at``, kills one rank of the third node by SIGKILL,
and lets the run end by itself. Prints one table, and ``many_ranks.json`` beside the run's bill.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import steelrail
from steelrail import log
from steelrail.artifacts.cost import CostSummary
from steelrail.artifacts.files import results_folder
from steelrail.launch import edge as launch
from steelrail.launch.status import status
from steelrail.units import show_usd

NAME = "many-ranks"
LOOK_SECONDS, LONGEST_SECONDS = 0.2, 400.0


def derive(ranks_per_node: int, steps: int, standby: bool) -> steelrail.Run:
    """Return the demo's run with so many ranks on each of its four nodes, and a sequence a rank and step."""
    run = steelrail.load_run("config/demo.yaml").model_dump(mode="json")
    run |= {"name": NAME}
    run["shape"] |= {"ranks_per_node": ranks_per_node, "rack": "any"}
    run["train"] |= {
        "steps": steps,
        "global_batch_sequences": run["shape"]["nodes"] * ranks_per_node,
        "heldout_every_steps": steps,
    }
    run["checkpoints"]["every_steps"] = 10
    run["launch"]["standby"] = standby
    return steelrail.Run.model_validate_json(json.dumps(run))


def await_step(run: steelrail.Run, step: int) -> None:
    """Return once the newest attempt has made ``step``."""
    end = time.monotonic() + LONGEST_SECONDS
    while (status(run).step or 0) < step:
        if time.monotonic() > end:
            raise TimeoutError(f"step {step} of {run.name} must come within {LONGEST_SECONDS} s, is {status(run).step}")
        time.sleep(LOOK_SECONDS)


def kill_rank(rank: int) -> float:
    """Kill one rank of ours by SIGKILL; return when (Unix s)."""
    (pid,) = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/comm") if _named(path, f"rank-{rank}")]
    os.kill(pid, signal.SIGKILL)
    return time.time()


def _named(path: Path, name: str) -> bool:
    try:
        return path.read_text().strip() == name and path.stat().st_uid == os.getuid()
    except OSError:
        return False


def chain(run: steelrail.Run, kill_at: int, timings: dict[str, float]) -> tuple[CostSummary, float]:
    """Run every stage, kill a rank on the way, and return the bill and when the rank was killed."""

    def lap(name: str) -> None:
        timings[name] = round(time.monotonic() - began - sum(timings.values()), 1)

    began = time.monotonic()
    steelrail.prepare(run)
    lap("corpus and shards")
    launch.fabric(run)
    lap("fabric")
    job = steelrail.submit(run)
    await_step(run, kill_at)
    lap(f"train to step {kill_at}")
    killed = kill_rank(2 * run.shape.ranks_per_node + run.shape.ranks_per_node // 2)
    job.result()
    lap("kill to the end of training")
    bill = steelrail.bill(run)
    lap("bill")
    return bill, killed


def found(run: steelrail.Run, bill: CostSummary, killed: float, timings: dict[str, float]) -> dict[str, Any]:
    """What the run's own artifacts say of it."""
    folder = results_folder(run)
    record = json.loads((folder / "train" / "record.json").read_text())
    rows = pq.read_table(folder / "train" / "metrics.parquet").to_pylist()
    first, second = (sorted(row["step"] for row in rows if row["attempt"] == number) for number in (1, 2))
    again = record["attempts"][1]
    new = min(row["time"] for row in rows if row["attempt"] == 2 and row["step"] > first[-1])
    return {
        "machine": f"{platform.node()}, {os.cpu_count()} cores",
        "ranks": run.shape.world_size,
        "stages_s": timings,
        "start_s": [one["start"] for one in record["attempts"]],
        "endings": [one["ending"] for one in record["attempts"]],
        "kill_to_ranks_started_s": round(again["started"] - killed, 2),
        "kill_to_a_step_s": round(again["started"] + sum(again["start"].values()) - killed, 2),
        "kill_to_a_new_step_s": round(new - killed, 2),
        "steps_again": first[-1] - second[0] + 1,
        "bill": show_usd(bill.total_micro_usd or 0),
        "bill_status": bill.status,
        "categories_gpu_s": {name: one.gpu_seconds for name, one in bill.categories.items()},
    }


def main() -> None:
    """Run the case and print what it shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks-per-node", type=int, default=16)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--kill-at", type=int, default=25)
    parser.add_argument("--standby", action="store_true", help="keep the next attempt loaded (launch.standby)")
    asked = parser.parse_args()
    log.configure()
    os.umask(0o077)
    run = derive(asked.ranks_per_node, asked.steps, asked.standby)
    timings: dict[str, float] = {}
    bill, killed = chain(run, asked.kill_at, timings)
    shown = found(run, bill, killed, timings)
    (results_folder(run) / "cost" / "many_ranks.json").write_text(json.dumps(shown, indent=1))
    for name, value in shown.items():
        print(f"{name:<26}{value}")


if __name__ == "__main__":
    main()
