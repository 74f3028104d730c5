"""The real four-host Slurm of slurm/dev as tests see it: its hosts, its jobs, and a user's clone on it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

PROJECT = Path(__file__).resolve().parents[2]
SCRIPT = PROJECT / "slurm" / "dev" / "cluster.sh"
HOME = Path("/home/steelrail")


def wait_until(claim: Callable[[], bool], seconds: float, what: str) -> None:
    """Polls twice a second; fails the test with `what` when `claim` stays false for `seconds`."""
    end = time.monotonic() + seconds
    while not claim():
        if time.monotonic() > end:
            pytest.fail(f"not within {seconds} s: {what}")
        time.sleep(0.5)


@dataclass(frozen=True)
class Segment:
    """One row of `sacct --duplicates`: a job between two (re)starts."""

    state: str
    nodes: str
    tres: str


@dataclass(frozen=True)
class Cluster:
    """The dev cluster as a test sees it; tests get this module's helpers through it."""

    folder: Path
    """A folder of the user's that head and hosts share, new for each test."""
    s3_url: str = "http://10.77.0.254:8333"
    bucket: str = "steelrail"

    @staticmethod
    def wait_until(claim: Callable[[], bool], seconds: float, what: str) -> None:
        wait_until(claim, seconds, what)

    def control(self, *arguments: str) -> str:
        """slurm/dev/cluster.sh ARGUMENTS as root."""
        return run([str(SCRIPT), *arguments], self.folder)

    def user(self, *command: str) -> str:
        """COMMAND as the ordinary user in `folder`; its standard output."""
        return self.control("as-user", *command)

    def submit(self, script: str, *options: str) -> str:
        """Submits a batch script as the user; the job's id."""
        path = self.folder / f"{uuid.uuid4().hex[:8]}.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        fixed = ["--parsable", "--open-mode=append", "--output=%j.log"]
        return self.user("sbatch", *fixed, *options, str(path)).strip()

    def log(self, job: str) -> str:
        path = self.folder / f"{job}.log"
        return path.read_text() if path.exists() else ""

    def state(self, job: str) -> str:
        """Slurm's present state of a job of this session (scontrol keeps it for five minutes)."""
        shown = self.user("scontrol", "--oneliner", "show", "job", job)
        return shown.split("JobState=")[1].split()[0]

    def await_state(self, job: str, state: str, seconds: float) -> None:
        wait_until(lambda: self.state(job) == state, seconds, f"job {job} {state}, is {self.state(job)}")

    def await_log(self, job: str, text: str, seconds: float) -> None:
        wait_until(lambda: text in self.log(job), seconds, f"{text!r} in the log of job {job}: {self.log(job)}")

    def segments(self, job: str) -> list[Segment]:
        """Slurm's own rows of a job, oldest first."""
        options = ["--duplicates", "--allocations", "--noheader", "--parsable2", "--format=State,NodeList,AllocTRES"]
        rows = self.user("sacct", *options, f"--jobs={job}").splitlines()
        return [Segment(*row.split("|")) for row in rows]

    def await_segments(self, job: str, *expected: tuple[str, str]) -> None:
        """Wait until Slurm's rows of a job are EXPECTED (state, nodes).

        slurmdbd hears of a start in several messages: for a moment a new row names the batch host alone.
        """

        def found() -> list[tuple[str, str]]:
            return [(one.state, one.nodes) for one in self.segments(job)]

        self.wait_until(lambda: found() == list(expected), 60, f"rows {list(expected)} in sacct")

    def node(self, host: str) -> str:
        """State of a node as sinfo abbreviates it, such as idle or down*."""
        return self.user("sinfo", "--noheader", "--Node", f"--nodes={host}", "--format=%t").split()[0]


@dataclass(frozen=True)
class Project:
    """A copy of this project that the ordinary user owns, as a user's own clone would be."""

    folder: Path

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def argv(self, *command: str) -> list[str]:
        """COMMAND as the user in the copy, with the copy's own sources."""
        return [str(SCRIPT), "as-user", "env", f"PYTHONPATH={self.folder}/src", *command]

    def run(self, *command: str, seconds: float = 600) -> subprocess.CompletedProcess[str]:
        """Ends when COMMAND does; its output is kept and its exit code left to the test."""
        return subprocess.run(
            self.argv(*command), cwd=self.folder, capture_output=True, text=True, timeout=seconds, check=False
        )

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Starts COMMAND in a process group of its own, output to <copy>/driver.log."""
        with (self.folder / "driver.log").open("a") as log:
            return subprocess.Popen(
                self.argv(*command), cwd=self.folder, stdout=log, stderr=log, text=True, start_new_session=True
            )

    def snakemake(self, name: str, *arguments: str, seconds: float = 900) -> subprocess.CompletedProcess[str]:
        """The chain of config/NAME.yaml."""
        return self.run("snakemake", "--profile", "slurm", "--config", f"run={name}", *arguments, seconds=seconds)

    def write_run(self, name: str, *changes: tuple[str, str], source: str = "demo") -> Path:
        """config/NAME.yaml: a shipped run file with the given texts replaced, and a corner of the store of its own."""
        text = (self.folder / "config" / f"{source}.yaml").read_text()
        own = ("bucket: steelrail", f"bucket: steelrail, prefix: {self.folder.name}")
        for old, new in ((f"name: {source}", f"name: {name}"), own, *changes):
            assert old in text, f"{old!r} is not in config/{source}.yaml"
            text = text.replace(old, new)
        path = self.folder / "config" / f"{name}.yaml"
        path.write_text(text)
        path.chmod(0o644)
        return path

    def json(self, path: str) -> dict[str, Any]:
        """A JSON artifact below results/."""
        read: dict[str, Any] = json.loads((self.results / path).read_text())
        return read

    def newest(self, name: str) -> dict[int, tuple[float, Any, int]]:
        """The last execution of every step of a run: loss, token digest, tokens."""
        rows = pq.read_table(self.results / name / "train" / "metrics.parquet").to_pylist()
        ordered = sorted(rows, key=lambda row: row["attempt"])
        return {row["step"]: (row["loss"], row["token_digest"], row["tokens"]) for row in ordered}

    @staticmethod
    def end(driver: subprocess.Popen[str]) -> None:
        """Kills what `start` started, if it still runs."""
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


def copy_project(folder: Path) -> Project:
    """Copies what git knows and what is new in the work tree to FOLDER, owned by the user."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT,
        capture_output=True,
        check=True,
    )
    names = [name for name in listed.stdout.decode().split("\0") if name and (PROJECT / name).is_file()]
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(PROJECT / name, target)
    subprocess.run(["chown", "-R", "steelrail:steelrail", str(folder)], check=True)
    return Project(folder)


def run(command: list[str], folder: Path) -> str:
    """The standard output of COMMAND in FOLDER; fails the test where it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout
