"""Faults of every kind, by seed, one after another: the run ends bit-equal to the undisturbed one. ``make chaos``.

Settings from the environment: STEELRAIL_CHAOS_SEED (0), STEELRAIL_CHAOS_FAULTS (40), STEELRAIL_CHAOS_STEPS (2000).
"""

from __future__ import annotations

import json
import os
import pwd
import random
import signal
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dev_cluster import Cluster, Project

SEED, FAULTS, STEPS = (
    int(os.environ.get(f"STEELRAIL_CHAOS_{name}", default))
    for name, default in (("SEED", "0"), ("FAULTS", "40"), ("STEPS", "2000"))
)
INTERVAL = 20
HOSTS = ("node1", "node2", "node3", "node4")
# Small steps: what is tried here is what lies between them.
MODEL = "dim: 128, num_layers: 4, num_heads: 4, num_kv_heads: 2, ffn_dim: 384"
SMALL = (
    (MODEL, "dim: 32, num_layers: 1, num_heads: 2, num_kv_heads: 1, ffn_dim: 64"),
    ("steps: 200", f"steps: {STEPS}"),
    # A second apart, saves outrun any store that stalls.
    ("every_steps: 25", f"every_steps: {INTERVAL}, max_behind: 100"),
    ("ranks_per_node: 2", "ranks_per_node: 1"),
    ("rack: preferred", "rack: any"),
    ("sequence_tokens: 256", "sequence_tokens: 32"),
    ("heldout_every_steps: 50", "heldout_every_steps: 500"),
    ("checkpoints:", "launch: {hang_seconds: 20.0}\ncheckpoints:"),
)
# A fault after which nothing was saved on the way out: up to an interval is made again.
ABRUPT = ("rank killed", "node's process killed", "rank stopped", "link cut", "slurmd killed", "preempted")


@dataclass
class Chaos:
    """A run that is being disturbed."""

    cluster: Cluster
    project: Project
    name: str
    rng: random.Random
    driver: subprocess.Popen[str]
    told: Counter[str] = field(default_factory=Counter)

    @property
    def folder(self) -> Path:
        """The run folder of its only key."""
        return next(path.parent for path in (self.project.results / self.name / "train").glob("*/ledger.jsonl"))

    def events(self) -> list[dict[str, Any]]:
        """What rank 0 of the newest attempt wrote."""
        paths = sorted((self.folder / "events").glob("attempt-*-rank-00000.jsonl"))
        lines = paths[-1].read_text().splitlines() if paths else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def attempts(self) -> int:
        return len(list((self.folder / "events").glob("attempt-*-rank-00000.jsonl")))

    def step(self) -> int:
        return max((one["step"] for one in self.events() if one["kind"] == "step"), default=0)

    def has_saved(self) -> bool:
        """Whether the newest attempt has a durable checkpoint of its own."""
        saved = [one for one in self.events() if one["kind"] == "durable" and one["where"] == "store"]
        return any(one["step"] > self.resumed() for one in saved)

    def resumed(self) -> int:
        return max((one.get("step") or 0 for one in self.events() if one["kind"] == "restore"), default=0)

    def over(self) -> bool:
        return self.driver.poll() is not None

    def job(self) -> str:
        lines = self.cluster.user("squeue", "--noheader", "--format=%i %j").splitlines()
        return next(line.split()[0] for line in lines if line.endswith(f"steelrail-{self.name}-train"))

    def start_driver(self) -> None:
        self.driver = self.project.start("snakemake", "--profile", "slurm", "--config", f"run={self.name}")

    def restarted(self, attempts: int) -> None:
        """Until a later attempt works; the run may also have ended."""
        self.cluster.wait_until(
            lambda: self.over() or self.attempts() > attempts, 400, f"attempt {attempts + 1} of {self.name}"
        )


def pids(name: Callable[[str], bool], command: str) -> list[int]:
    """Processes of the user's jobs whose name and command line are so; others' runs are left alone."""
    found, user = [], pwd.getpwnam("steelrail").pw_uid
    for path in Path("/proc").glob("[0-9]*"):
        try:
            mine = path.stat().st_uid == user and command in (path / "cmdline").read_text()
            if mine and name((path / "comm").read_text()):
                found.append(int(path.name))
        except OSError:
            continue
    return sorted(found)


def ranks() -> list[int]:
    return pids(lambda name: name.startswith("rank-"), "steelrail.launch.rank")


def rank_killed(chaos: Chaos) -> None:
    os.kill(chaos.rng.choice(ranks()), signal.SIGKILL)


def nodes_process_killed(chaos: Chaos) -> None:
    os.kill(chaos.rng.choice(pids(lambda name: name.startswith("python"), "steelrail.launch.rank")), signal.SIGKILL)


def rank_stopped(chaos: Chaos) -> None:
    os.kill(chaos.rng.choice(ranks()), signal.SIGSTOP)


def requeued(chaos: Chaos) -> None:
    chaos.cluster.user("scontrol", "requeue", chaos.job())


def signalled(chaos: Chaos) -> None:
    chaos.cluster.user("scancel", "--signal=USR2", chaos.job())


def preempted(chaos: Chaos) -> None:
    chaos.cluster.user("srun", "--partition=urgent", "--nodes=4", "--time=1", "sleep", "1")


def link_cut(chaos: Chaos) -> None:
    host = chaos.rng.choice(HOSTS)
    chaos.cluster.control("cut", host)
    time.sleep(45)
    chaos.cluster.control("mend", host)


def slurmd_killed(chaos: Chaos) -> None:
    host = chaos.rng.choice(HOSTS[1:])
    chaos.cluster.control("kill-host", host)
    time.sleep(20)
    chaos.cluster.control("start-slurmd", host)


def driver_killed(chaos: Chaos) -> None:
    chaos.project.end(chaos.driver)
    chaos.start_driver()


def store_killed(chaos: Chaos) -> None:
    chaos.cluster.control("s3", "kill")
    time.sleep(chaos.rng.uniform(1, 15))
    chaos.cluster.control("s3", "start")


def store_stalled(chaos: Chaos) -> None:
    chaos.cluster.control("s3", "pause")
    time.sleep(chaos.rng.uniform(1, 25))
    chaos.cluster.control("s3", "resume")


def controller_restarted(chaos: Chaos) -> None:
    chaos.cluster.control("restart", "slurmctld")


def accounts_restarted(chaos: Chaos) -> None:
    chaos.cluster.control("restart", "slurmdbd")


# What ends an attempt, and what the run must go on through.
ENDING: dict[str, Callable[[Chaos], None]] = {
    "rank killed": rank_killed,
    "node's process killed": nodes_process_killed,
    "rank stopped": rank_stopped,
    "requeued": requeued,
    "signalled": signalled,
    "preempted": preempted,
    "link cut": link_cut,
    "slurmd killed": slurmd_killed,
}
ENDURED: dict[str, Callable[[Chaos], None]] = {
    "driver killed": driver_killed,
    "store killed": store_killed,
    "store stalled": store_stalled,
    "slurmctld restarted": controller_restarted,
    "slurmdbd restarted": accounts_restarted,
}


@pytest.fixture
def chaos(cluster: Cluster, project: Project) -> Iterator[Chaos]:
    project.write_run("calm", *SMALL)
    done = project.snakemake("calm", seconds=3600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-6000:]
    project.write_run("chaos", *SMALL)
    cluster.control("spare", "up")
    rng = random.Random(SEED)
    driver = project.start("snakemake", "--profile", "slurm", "--config", "run=chaos")
    made = Chaos(cluster, project, "chaos", rng, driver)
    yield made
    project.end(made.driver)
    cluster.control("s3", "start")


@pytest.mark.timeout(3 * 3600)
def test_a_run_through_many_faults_ends_as_the_undisturbed_one(
    chaos: Chaos, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = [*ENDING, *ENDURED]
    order = [kinds[number % len(kinds)] for number in range(FAULTS)]
    chaos.rng.shuffle(order)
    chaos.cluster.wait_until(
        lambda: bool(list((chaos.project.results / "chaos/train").glob("*/ledger.jsonl"))), 600, "training"
    )
    for number, kind in enumerate(order):
        chaos.cluster.wait_until(lambda: chaos.over() or chaos.has_saved(), 600, f"a checkpoint before fault {number}")
        time.sleep(chaos.rng.uniform(0.0, 3.0))
        if chaos.over():
            break
        attempts, at = chaos.attempts(), chaos.step()
        (ENDING | ENDURED)[kind](chaos)
        chaos.told[kind] += 1
        with capsys.disabled():
            print(f"{time.strftime('%T')} fault {number + 1} of {FAULTS}: {kind}, at step {at}, attempt {attempts}")  # noqa: T201
        if kind in ENDING:
            chaos.restarted(attempts)
    code, said = chaos.driver.wait(timeout=1800), (chaos.project.folder / "driver.log").read_text()[-8000:]
    assert code == 0, said
    assert sum(chaos.told.values()) == FAULTS, f"the run was over after {chaos.told}: it needs more steps"
    assert chaos.project.newest("calm") == chaos.project.newest("chaos")
    figures = _figures(chaos)
    with capsys.disabled():
        print(json.dumps(figures, indent=1))  # noqa: T201


def _figures(chaos: Chaos) -> dict[str, Any]:
    """Check the bill, and return lost work and goodput beside what they should be."""
    record, summary = chaos.project.json("chaos/train/record.json"), chaos.project.json("chaos/cost/summary.json")
    assert (STEPS, "done") == (record["final_step"], record["ending"])
    assert summary["attempts"] == len(record["attempts"])
    assert summary["total_micro_usd"] == sum(one["micro_usd"] for one in summary["categories"].values())
    assert summary["unattributed_share"] < 0.01
    worked = [one for one in record["attempts"] if one["last_step"] is not None]
    again = [before["last_step"] - after["first_step"] + 1 for before, after in pairwise(worked)]
    # No attempt loses more than an interval and the save that was under way.
    assert max(again) <= 2 * INTERVAL, again
    abrupt = sum(chaos.told[kind] for kind in ABRUPT)
    starts = [sum(one["start"].values()) for one in worked]
    seconds = {name: one["gpu_seconds"] for name, one in summary["categories"].items()}
    calm = chaos.project.json("calm/cost/summary.json")["categories"]
    return {
        "seed": SEED,
        "faults": dict(chaos.told),
        "attempts": len(record["attempts"]),
        "steps made again": sum(again),
        "predicted: half an interval a fault without a save": abrupt * INTERVAL / 2,
        "median start of an attempt, s": statistics.median(starts),
        "goodput": seconds["productive"] / sum(seconds.values()),
        "goodput undisturbed": calm["productive"]["gpu_seconds"] / sum(one["gpu_seconds"] for one in calm.values()),
        "gpu-seconds": {name: round(value) for name, value in seconds.items()},
        "total_micro_usd": summary["total_micro_usd"],
    }
