"""The whole chain on the four-host Slurm: undisturbed, cached, disturbed by every kind of fault, and billed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

if TYPE_CHECKING:
    from dev_cluster import Cluster, Project

INTERVAL = 10
STEPS = 120
SHORT = (("steps: 200", f"steps: {STEPS}"), ("every_steps: 25", f"every_steps: {INTERVAL}"))


def rows(project: Project, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(project.results / name / "train" / "metrics.parquet").to_pylist()
    return found


def squeue(cluster: Cluster, form: str = "%i %T %P %j") -> list[str]:
    return cluster.user("squeue", "--noheader", f"--format={form}").splitlines()


def training_jobs(cluster: Cluster, name: str) -> list[str]:
    return [line.split()[0] for line in squeue(cluster) if f"steelrail-{name}-train" in line]


def planned(project: Project, name: str, *arguments: str) -> set[str]:
    """The rules that Snakemake would run now."""
    done = project.snakemake(name, "--dry-run", "--quiet", "rules", *arguments, seconds=120)
    assert done.returncode == 0, done.stdout + done.stderr
    words = {"corpus", "shard_part", "shards", "fabric", "train", "cost"}
    return {word for line in (done.stdout + done.stderr).splitlines() for word in line.split()[:1] if word in words}


@pytest.fixture(scope="module")
def plain(project: Project) -> str:
    """A finished undisturbed run."""
    project.write_run("plain", *SHORT)
    done = project.snakemake("plain")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-6000:]
    return "plain"


def test_the_chain_ends_in_a_model_a_record_and_a_bill(cluster: Cluster, project: Project, plain: str) -> None:
    record, summary = project.json("plain/train/record.json"), project.json("plain/cost/summary.json")
    assert (STEPS, "done") == (record["final_step"], record["ending"])
    assert f"plain/{record['key']}/steps/" in record["final_checkpoint"]
    assert record["heldout_first"] - record["heldout_last"] > 0.5
    assert isinstance(summary["total_micro_usd"], int) and summary["total_micro_usd"] > 0
    assert summary["total_micro_usd"] == sum(one["micro_usd"] for one in summary["categories"].values())
    assert (project.results / "plain/cost/report.html").stat().st_size > 20_000
    assert list(range(1, STEPS + 1)) == [row["step"] for row in rows(project, "plain")]


def test_slurm_saw_cpu_shard_jobs_and_exclusive_four_node_jobs(cluster: Cluster, project: Project, plain: str) -> None:
    record, shards = project.json("plain/train/record.json"), project.json("plain/shards/manifest.json")
    fabric = project.json("plain/fabric/report.json")
    form = "--format=JobIDRaw,Partition,NNodes,AllocTRES,State"
    query = ["sacct", "--duplicates", "--allocations", "--noheader", "--parsable2", form]
    ids = [*shards["job_ids"], fabric["job_id"], *record["job_ids"]]
    found = {
        line.split("|")[0]: line.split("|")[1:] for line in cluster.user(*query, f"--jobs={','.join(ids)}").splitlines()
    }
    assert {"cpu"} == {found[job][0] for job in shards["job_ids"]} and 4 == len(shards["job_ids"])
    for job in (fabric["job_id"], *record["job_ids"]):
        assert ("gpu", "4") == tuple(found[job][:2]) and "gres/gpu=64" in found[job][2]
    assert 8 == sum(len(node["ranks"]) for node in fabric["nodes"])


def test_a_second_run_does_nothing_and_says_so_quickly(cluster: Cluster, project: Project, plain: str) -> None:
    took = list[float]()
    while len(took) < 3 and min(took, default=10.0) >= 10.0:  # whatever else the machine does only slows one down
        began = time.monotonic()
        done = project.snakemake("plain")
        took.append(time.monotonic() - began)
        assert done.returncode == 0 and "Nothing to be done" in done.stdout + done.stderr
    assert min(took) < 10, f"took {took} s"


def test_only_what_an_edit_concerns_runs_again(cluster: Cluster, project: Project, plain: str) -> None:
    path = project.folder / "config" / "plain.yaml"
    text = path.read_text()
    everything = {"corpus", "shard_part", "shards", "fabric", "train", "cost"}
    try:
        path.write_text(text.replace("\nslurm:", "\n\n# a remark\nslurm:"))
        assert set() == planned(project, "plain")
        path.write_text(text.replace("minutes: 60", "minutes: 61"))
        assert set() == planned(project, "plain")
        path.write_text(text.replace("partition: gpu", "partition: gpu-grace"))
        assert {"fabric", "cost"} == planned(project, "plain")
        path.write_text(text.replace("learning_rate: 0.003", "learning_rate: 0.002"))
        assert {"train", "cost"} == planned(project, "plain")
    finally:
        path.write_text(text)
    assert {"fabric", "cost"} == planned(project, "plain", "--forcerun", "fabric")
    record = project.results / "plain" / "train" / "record.json"
    aside = record.with_name("aside.json")
    record.rename(aside)
    try:  # as a run that was stopped leaves it, whose bill of before is still there
        assert {"train", "cost"} == planned(project, "plain")
    finally:
        aside.rename(record)
    book = next(iter(sorted((project.folder / "config" / "prices").glob("*.yaml"))))
    before = book.read_text()
    try:
        book.write_text(before.replace("3.99", "4.01"))
        assert before != book.read_text()
        assert {"cost"} == planned(project, "plain")
    finally:
        book.write_text(before)
    more = project.folder / "data" / "more.parquet"
    path.write_text(text.replace("paths: [data/sample.parquet]", 'paths: ["data/*.parquet"]'))
    shutil.copy(project.folder / "data" / "sample.parquet", more)
    try:
        assert everything - {"fabric"} == planned(project, "plain") - {"fabric"}
    finally:
        more.unlink()
        path.write_text(text)
    assert set() == planned(project, "plain")


def test_an_upstream_file_made_anew_repeats_no_training(cluster: Cluster, project: Project, plain: str) -> None:
    before, bill = project.json("plain/train/record.json"), project.json("plain/cost/summary.json")
    done = project.snakemake("plain", "--forcerun", "corpus", "fabric", seconds=600)
    assert done.returncode == 0, done.stderr[-4000:]
    assert before["attempts"] == project.json("plain/train/record.json")["attempts"]
    again = [one for one in project.json("plain/cost/summary.json")["segments"] if one["stage"] == "fabric"]
    assert len(again) == 1 + len([one for one in bill["segments"] if one["stage"] == "fabric"])


@pytest.fixture(scope="module")
def disturbed(project: Project, plain: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A run of the same mathematics, started and not waited for."""
    project.write_run("faulty", *SHORT)
    driver = project.start("snakemake", "--profile", "slurm", "--config", "run=faulty")
    yield "faulty", driver
    project.end(driver)


class Watcher:
    """Looks at a run that is under way through its own files."""

    def __init__(self, cluster: Cluster, project: Project, name: str) -> None:
        self.cluster, self.project, self.name = cluster, project, name

    def step(self) -> int:
        """The last step of the newest attempt that made one; 0 before any."""
        newest = sorted((self.project.results / self.name / "train").glob("*/metrics/attempt-*.jsonl"))
        for path in reversed(newest):
            lines = [line for line in path.read_text().splitlines() if line.endswith("}")]
            if lines:
                return int(json.loads(lines[-1])["step"])
        return 0

    def attempts(self) -> int:
        return len(list((self.project.results / self.name / "train").glob("*/metrics/attempt-*.jsonl")))

    def await_step(self, step: int, seconds: float = 180) -> None:
        """Until STEP or soon after: a few steps from any save, so that no fault finds one just begun."""

        def between_saves() -> bool:
            now = self.step()
            return now >= step and 4 <= now % INTERVAL < 8

        self.cluster.wait_until(between_saves, seconds, f"step {step} of {self.name}, is at {self.step()}")

    def await_new_steps(self, than_attempts: int, seconds: float = 240) -> None:
        """Until an attempt later than so many has made a step."""
        self.cluster.wait_until(
            lambda: self.attempts() > than_attempts, seconds, f"attempt {than_attempts + 1} at work"
        )

    @property
    def job(self) -> str:
        (job,) = training_jobs(self.cluster, self.name)
        return job


def rank_pids(host: str) -> list[int]:
    """Rank processes on a host of the dev cluster, in order."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            environment = (entry / "environ").read_bytes().split(b"\0")
            name = (entry / "comm").read_text()
        except OSError:
            continue
        if (
            "steelrail.launch.rank" in command
            and f"SLURMD_NODENAME={host}".encode() in environment
            and name.startswith("rank-")
        ):
            found.append(int(entry.name))
    return sorted(found)


def test_faults_one_after_another_leave_the_losses_as_they_were(
    cluster: Cluster, project: Project, plain: str, disturbed: tuple[str, subprocess.Popen[str]]
) -> None:
    name, driver = disturbed
    watcher = Watcher(cluster, project, name)
    watcher.await_step(INTERVAL + 2, seconds=540)
    job = watcher.job

    # (c) one rank dies: the nodes are kept.
    restarts = cluster.user("scontrol", "--oneliner", "show", "job", job).split("Restarts=")[1].split()[0]
    attempts = watcher.attempts()
    os.kill(rank_pids("node2")[0], signal.SIGKILL)
    watcher.await_new_steps(attempts)
    assert "RUNNING" == cluster.state(job)
    assert restarts == cluster.user("scontrol", "--oneliner", "show", "job", job).split("Restarts=")[1].split()[0]

    # Snakemake itself dies: the same command attaches.
    project.end(driver)
    again = project.start("snakemake", "--profile", "slurm", "--config", f"run={name}")
    try:
        watcher.await_step(watcher.step() + 3)
        assert [job] == training_jobs(cluster, name)

        # (a) requeued by hand.
        attempts = watcher.attempts()
        cluster.user("scontrol", "requeue", job)
        watcher.await_new_steps(attempts)
        assert [job] == training_jobs(cluster, name)

        # (d) our own signal, as before a time limit.
        watcher.await_step(watcher.step() + 3)
        attempts = watcher.attempts()
        cluster.user("scancel", "--signal=USR2", job)
        watcher.await_new_steps(attempts)

        # (e) preempted by a higher partition.
        watcher.await_step(watcher.step() + 3)
        attempts = watcher.attempts()
        cluster.user("srun", "--partition=urgent", "--nodes=4", "--time=1", "sleep", "2")
        watcher.await_new_steps(attempts)

        # (b) a host's link is cut, without a spare: the job waits in the queue until the link is back.
        watcher.await_step(watcher.step() + 3)
        attempts = watcher.attempts()
        cluster.control("cut", "node2")
        time.sleep(60)
        cluster.await_state(job, "PENDING", 60)
        cluster.control("mend", "node2")
        watcher.await_new_steps(attempts)
        assert [job] == training_jobs(cluster, name)

        # (b) once more, with a spare.
        watcher.await_step(watcher.step() + 3)
        attempts = watcher.attempts()
        cluster.control("spare", "up")
        cluster.control("cut", "node3")
        watcher.await_new_steps(attempts)
        cluster.control("mend", "node3")
        code = again.wait(timeout=600)
        assert 0 == code, (project.folder / "driver.log").read_text()[-6000:]
    finally:
        project.end(again)
    assert project.newest(plain) == project.newest(name)
    record = project.json(f"{name}/train/record.json")
    assert (STEPS, "done", [job]) == (record["final_step"], record["ending"], record["job_ids"])
    # A node that came back may end a step at once, while its slurmd clears the old one away: an attempt of no step.
    worked = [attempt for attempt in record["attempts"] if attempt["last_step"] is not None]
    assert 7 == len(worked), [attempt["ending"] for attempt in record["attempts"]]
    replayed(name, worked)


def replayed(name: str, attempts: list[dict[str, Any]]) -> None:
    """At most one interval is done twice after an abrupt end, at most one step where a save fits."""
    for before, after in pairwise(attempts):
        repeated = before["last_step"] - after["first_step"] + 1
        allowed = 1 if before["ending"] in ("requeued", "walltime") else INTERVAL
        assert repeated <= allowed, (name, before, after)


def test_the_bill_of_the_disturbed_run_holds_every_attempt_and_balances(
    cluster: Cluster, project: Project, disturbed: tuple[str, subprocess.Popen[str]]
) -> None:
    summary, record = project.json("faulty/cost/summary.json"), project.json("faulty/train/record.json")
    assert len(record["attempts"]) == summary["attempts"]
    assert summary["total_micro_usd"] == sum(one["micro_usd"] for one in summary["categories"].values())
    assert summary["total_micro_usd"] == sum(one["micro_usd"] for one in summary["segments"])
    assert summary["unattributed_share"] < 0.01
    assert summary["categories"]["replayed"]["gpu_seconds"] > 0
    ledger = pq.read_table(project.results / "faulty/cost/ledger.parquet")
    assert summary["total_micro_usd"] == sum(ledger.column("micro_usd").to_pylist())


def events(project: Project, name: str, kind: str, attempt: int) -> list[dict[str, Any]]:
    """What all ranks of an attempt said of one kind of thing."""
    paths = (project.results / name / "train").glob(f"*/events/attempt-{attempt:04d}-rank-*.jsonl")
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines() if line.endswith("}")]
    return [line for line in lines if line["kind"] == kind]


def hosts_of(project: Project, kind: str, attempt: int) -> set[str]:
    return {one["host"] for one in events(project, "held", kind, attempt)}


def test_a_spare_takes_a_lost_nodes_place_and_the_job_keeps_its_nodes(
    cluster: Cluster, project: Project, plain: str
) -> None:
    spare = (("  partition: gpu\n", "  partition: gpu\n  spare_nodes: 1\n"), ("rack: preferred", "rack: any"))
    project.write_run("held", *SHORT, *spare)
    cluster.control("spare", "up")
    driver = project.start("snakemake", "--profile", "slurm", "--config", "run=held")
    try:
        watcher = Watcher(cluster, project, "held")
        watcher.await_step(INTERVAL + 3, seconds=540)
        job = watcher.job
        cluster.wait_until(lambda: 4 == len(hosts_of(project, "copied", 1)), 60, "a copy on every node's buddy")
        cluster.control("cut", "node3")
        watcher.await_new_steps(1)
        assert "RUNNING" == cluster.state(job)
        cluster.control("mend", "node3")
        assert 0 == driver.wait(timeout=600), (project.folder / "driver.log").read_text()[-6000:]
    finally:
        project.end(driver)
        cluster.control("mend", "node3")
        cluster.control("spare", "down")
    assert project.newest(plain) == project.newest("held")
    record, summary = project.json("held/train/record.json"), project.json("held/cost/summary.json")
    assert [["node1", "node2", "node3", "node4"], ["node1", "node2", "node5", "node4"]] == [
        attempt["nodes"] for attempt in record["attempts"]
    ]
    assert [job] == record["job_ids"] and [job] == [attempt["job_id"] for attempt in record["attempts"]][:1]
    replayed("held", record["attempts"])
    # What the lost node held came from its buddy.
    read = [one["bytes"] for one in events(project, "held", "restore", 2)]
    assert sum(one["store"] for one in read) == 0 and sum(one["peer"] for one in read) > 0
    # Four nodes trained, the fifth waited, and all five were paid for while they were held.
    assert summary["total_micro_usd"] == sum(one["micro_usd"] for one in summary["categories"].values())
    assert summary["categories"]["idle"]["gpu_seconds"] > 0 and summary["unattributed_share"] < 0.01
