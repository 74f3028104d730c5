"""From the kill of a rank to the next new step: Steelrail beside torchrun on one dev cluster, by turns.

usage: bench/on_dev_cluster.sh restart_peers.py [--ranks-per-node N] [--steps N] [--kill-at N] [--rounds N]

Four nodes, the demo's shape, a save every 10 steps, one rank of the third node killed by SIGKILL at the same step.
Ours restarts inside the allocation, and in two more rows goes by requeue, with and without what the nodes' NVMe held.
Peers: ``torchrun`` with torch's own checkpoint and a batch script that requeues itself when it fails, which is what
many run today; and ``torchrun --max-restarts``, which starts its workers again in the allocation. Slurm's
``cred_expire`` is as the cluster was brought up: STEELRAIL_DEV_CRED_EXPIRE=120 is Slurm's own default. Prints a table
and leaves ``results/peers/restart_peers.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import many_ranks
import pyarrow.parquet as pq

import steelrail
from steelrail import log
from steelrail.artifacts.files import results_folder
from steelrail.clients.slurm import Slurm
from steelrail.launch import edge as launch

NODES, SAVE_EVERY = 4, 10
SHAPE = ("8192", "128", "4", "256")  # vocabulary, width, layers, sequence
LONGEST_SECONDS = 400.0
NVME = Path("/var/lib/steelrail-dev/nodes")
SCRIPT = """#!/bin/bash
#SBATCH --job-name=peer --partition=gpu --nodes={nodes} --exclusive --gpus-per-node=16 --ntasks-per-node=1 --mem=0
#SBATCH --cpus-per-task={ranks} --time=30 --requeue --open-mode=append --output={folder}/log
export GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --kill-on-bad-exit=1 {python} -m torch.distributed.run --nnodes={nodes} --nproc-per-node={ranks} \\
  --rdzv-backend=c10d --rdzv-endpoint="$first:29400" --rdzv-id="$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}" \\
  --max-restarts={restarts} {program} {arguments}
rc=$?
[ $rc = 0 ] || scontrol requeue "$SLURM_JOB_ID"
exit $rc
"""


@dataclass(frozen=True)
class Taken:
    """Seconds from the kill to the next new step, and the parts of them."""

    seconds: float
    parts: dict[str, float]


def peer(root: Path, ranks: int, steps: int, kill_at: int, restarts: int) -> Taken:
    """Submit the peer, kill one worker on the third node, and return the seconds to the next new step."""
    folder = root / f"torchrun-{restarts}-{time.time_ns()}"
    folder.mkdir(parents=True)
    program = Path(__file__).with_name("peer_torchrun.py")
    arguments = " ".join([str(folder), str(steps), str(SAVE_EVERY), *SHAPE])
    known = {"nodes": NODES, "ranks": ranks, "folder": folder, "python": sys.executable, "restarts": restarts}
    (folder / "job.sh").write_text(SCRIPT.format(**known, program=program, arguments=arguments))
    job = subprocess.run(
        ["sbatch", "--parsable", str(folder / "job.sh")], capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        await_rows(folder, kill_at)
        killed = kill_worker(2 * ranks + ranks // 2)
        last = max(step for step, at in rows_of(folder) if at <= killed + 1.0)
        new = await_rows(folder, last + 1)
        first = min(at for _, at in rows_of(folder) if at > killed + 1.0)
        return Taken(new - killed, {"until its first step": first - killed, "steps made again": new - first})
    finally:
        subprocess.run(["scancel", job], check=True)
        await_gone(job)


def rows_of(folder: Path) -> list[tuple[int, float]]:
    """Step and Unix seconds of every step so far."""
    path = folder / "steps.txt"
    text = path.read_text() if path.exists() else ""
    return [
        (int(line.split()[1]), float(line.split()[2])) for line in text.splitlines(keepends=True) if line[-1] == "\n"
    ]


def await_rows(folder: Path, step: int) -> float:
    """Return when ``step`` was first made (Unix s)."""
    end = time.monotonic() + LONGEST_SECONDS
    while not (made := [at for one, at in rows_of(folder) if one >= step]):
        if time.monotonic() > end:
            raise TimeoutError(f"step {step} must come within {LONGEST_SECONDS} s (see {folder}/log)")
        time.sleep(0.1)
    return min(made)


def kill_worker(rank: int) -> float:
    """Kill the peer's worker of one rank by SIGKILL; return when (Unix s)."""
    (pid,) = [pid for pid, words, env in _ours() if "peer_torchrun.py" in words and f"RANK={rank}" in env]
    os.kill(pid, signal.SIGKILL)
    return time.time()


def _ours() -> Iterator[tuple[int, str, list[str]]]:
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            env = (path / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        yield int(path.name), words, env


def await_gone(job: str) -> None:
    """Return once the queue knows the job no more: the next run must find its nodes free."""
    while subprocess.run(["squeue", "--noheader", f"--jobs={job}"], capture_output=True, text=True, check=False).stdout:
        time.sleep(0.5)


def ours(ranks: int, steps: int, kill_at: int, standby: bool, number: int) -> Taken:
    """Train with Steelrail and kill one rank on the third node: it goes on inside the allocation."""
    run = many_ranks.derive(ranks, steps, standby).model_copy(update={"name": f"ours-{int(standby)}-{number}"})
    return killed_and_back(run, kill_at, cold=False)


def requeued(ranks: int, steps: int, kill_at: int, cold: bool, number: int) -> Taken:
    """The same, but the run goes on by requeue; ``cold``: on nodes that hold nothing of it any more."""
    plain = many_ranks.derive(ranks, steps, False)
    launch_settings = plain.launch.model_copy(update={"restarts_in_allocation": 0})
    name = f"requeued-{int(cold)}-{number}"
    return killed_and_back(plain.model_copy(update={"name": name, "launch": launch_settings}), kill_at, cold)


def killed_and_back(run: steelrail.Run, kill_at: int, cold: bool) -> Taken:
    """Return what it took from the kill of a rank to the next new step."""
    steelrail.prepare(run)
    launch.fabric(run)
    job = steelrail.submit(run)
    ranks = run.shape.ranks_per_node
    try:
        many_ranks.await_step(run, kill_at)
        killed = many_ranks.kill_rank(2 * ranks + ranks // 2)
        if cold:
            empty_nodes(run.name)
        job.result()
    finally:
        job.cancel(check=False)
        await_gone(job.job_id)
    train = results_folder(run) / "train"
    rows = pq.read_table(train / "metrics.parquet").to_pylist()
    last = max(row["step"] for row in rows if row["attempt"] == 1)
    new = float(min(row["time"] for row in rows if row["attempt"] > 1 and row["step"] > last))
    again = next(one for one in json.loads((train / "record.json").read_text())["attempts"][1:] if one["last_step"])
    parts = {"until it began": again["started"] - killed, **again["start"]}
    parts["steps made again"] = new - again["started"] - sum(again["start"].values())
    return Taken(new - killed, parts)


def empty_nodes(name: str) -> None:
    """Remove what the nodes' NVMe holds of a run, as soon as nothing of it runs on them."""
    end = time.monotonic() + LONGEST_SECONDS
    while any("steelrail.launch.rank" in words for _, words, _ in _ours()) and time.monotonic() < end:
        time.sleep(0.1)
    for folder in NVME.glob(f"node*/fastssd/steelrail-*/{name}"):
        shutil.rmtree(folder)


def main() -> None:
    """Run every case in turn, so many rounds, and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks-per-node", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--kill-at", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=1)
    asked = parser.parse_args()
    log.configure()
    os.umask(0o077)
    ranks, steps, kill_at = asked.ranks_per_node, asked.steps, asked.kill_at
    root = Path("results/peers").absolute()
    cases: dict[str, Callable[[int], Taken]] = {
        "steelrail, next attempt loaded": lambda number: ours(ranks, steps, kill_at, True, number),
        "steelrail": lambda number: ours(ranks, steps, kill_at, False, number),
        "steelrail by requeue, warm": lambda number: requeued(ranks, steps, kill_at, False, number),
        "steelrail by requeue, cold": lambda number: requeued(ranks, steps, kill_at, True, number),
        "torchrun, requeue script": lambda _: peer(root, ranks, 200, kill_at, 0),
        "torchrun --max-restarts": lambda _: peer(root, ranks, 200, kill_at, 3),
    }
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(asked.rounds):
        for name, case in cases.items():
            taken = case(number)
            seconds[name].append(round(taken.seconds, 1))
            parts = ", ".join(f"{part} {length:.1f}" for part, length in taken.parts.items())
            print(f"round {number + 1}: {name}: {seconds[name][-1]} s ({parts})", flush=True)
    show(seconds, ranks)


def show(seconds: dict[str, list[float]], ranks: int) -> None:
    """Print the table and keep it."""
    best = statistics.median(next(iter(seconds.values())))
    shown: dict[str, Any] = {"machine": f"{platform.node()}, {os.cpu_count()} cores", "ranks": NODES * ranks}
    shown["auth_info"] = Slurm().config()["AuthInfo"]
    shown["seconds"] = seconds
    Path("results/peers/restart_peers.json").write_text(json.dumps(shown, indent=1))
    print(f"{shown['machine']}, {shown['ranks']} ranks, AuthInfo {shown['auth_info']}")
    print(f"{'kill to the next new step':<34}{'median s':>9}{'ratio':>8}")
    for name, found in seconds.items():
        print(f"{name:<34}{statistics.median(found):>9.1f}{statistics.median(found) / best:>8.1f}  {found}")


if __name__ == "__main__":
    main()
