"""A training run on the dev cluster, started as its user starts it, and what is done to its hosts."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import servers
from dev_cluster import HOME, SCRIPT, Cluster, Project, run
from restarts import parent
from runs import NAME, WAIT_SECONDS, Case, Curve, until
from servers import Server

HEAD = "10.77.0.254"
NODES, RANKS_PER_NODE = 4, 2
HOSTS = ("node1", "node2", "node3", "node4", "node5")
STEPS, EVERY = 40, 5
# Long enough that a fault meets the step, or the save, that it is meant for.
PACE_SECONDS = 0.3
FASTSSD = Path("/var/lib/steelrail-dev/nodes")
# Where the environment really lies: a clone that the user cannot reach only has a link to it.
PROGRAMS = Path(sys.executable).parent.resolve()
JOB = f"steelrail-{NAME}-train"


def settings(case: Case, project: Project, steps: int = STEPS) -> dict[str, Any]:
    """Return the run file of ``case`` for four hosts of the dev cluster: eight ranks, forty small steps."""
    local = case.settings
    drills = [{"kind": "wait", "seconds": PACE_SECONDS, "at_step": step, "attempt": 0} for step in range(1, steps + 1)]
    return {
        **local,
        "shape": {**local["shape"], "nodes": NODES, "gpus_per_node": 16, "rack": "any", "rail_gbit_per_s": 1},
        "slurm": {
            "partition": "gpu",
            "minutes": 30,
            "lead_seconds": 30,
            "cpus_per_rank": 1,
            "environment": {"GLOO_SOCKET_IFNAME": "eth0"},
        },
        "node": {"nvme": "/mnt/fastssd", "min_free_gb": 0.0},
        "store": {**local["store"], "allow_http": True},
        "train": {**local["train"], "steps": steps, "global_batch_sequences": 8, "heldout_sequences": 0},
        "checkpoints": {"every_steps": EVERY},
        "fabric": {"matrix_size": 64, "pair_bytes": 1000, "repeats": 3},
        "launch": {"poll_seconds": 0.5, "hang_seconds": 20.0},
        "cost": {"price_book": str(project.folder / "config" / "prices")},
        "drills": drills,
    }


@dataclass
class OnSlurm(Case):
    """A case whose commands are the user's, and whose ranks run on the hosts of the dev cluster."""

    project: Project = field(default_factory=lambda: Project(Path()))
    cluster: Cluster = field(default_factory=lambda: Cluster(Path()))
    before: str = ""

    @classmethod
    def on(cls, cluster: Cluster, project: Project, server: Server, manifest: Path) -> OnSlurm:
        """Return a run of its own on the cluster, whose data shards are made already."""
        folder = HOME / "tests" / f"case-{uuid.uuid4().hex[:8]}"
        plain = Case.new(folder, server, servers.url(server), manifest)
        made = cls(folder, server, settings(plain, project), secrets=plain.secrets, project=project, cluster=cluster)
        subprocess.run(["chown", "-R", "steelrail:steelrail", str(folder)], check=True)
        return made

    def command(self) -> list[str]:
        """Return how the user calls Steelrail, with the project copy's own sources; ``before`` leads his PATH."""
        own = [f"{name}={value}" for name, value in self.own_environment().items()]
        own += [f"PYTHONPATH={self.project.folder}/src", f"PATH={self.before}{PROGRAMS}:/usr/bin:/bin"]
        return [str(SCRIPT), "as-user", "env", *own, "steelrail"]

    def write_run(self) -> Path:
        """Write the run file where the user can read it, in a folder that nobody else can."""
        file = super().write_run()
        file.chmod(0o644)
        return file

    def kill(self) -> None:
        """No process and no job of the run outlives it; its folder goes with it, and what the hosts hold of it."""
        self.cluster.user("scancel", "--user=steelrail")
        super().kill()
        until(lambda: not self.queued(), 90.0, "its jobs are gone")
        shutil.rmtree(self.folder)
        for host in HOSTS:
            for held in self.on_nvme(host):
                shutil.rmtree(held)

    def on_nvme(self, host: str) -> list[Path]:
        """Return what a host's NVMe holds of the run."""
        return list((FASTSSD / host / "fastssd").glob(f"steelrail-*/*/{NAME}"))

    # What is seen of it.

    def queued(self) -> list[str]:
        """Return the training jobs that Slurm holds, whatever their state."""
        return self.cluster.user("squeue", "--noheader", f"--name={JOB}", "--format=%i").split()

    def job(self) -> str:
        """Return the one training job."""
        (job,) = self.queued()
        return job

    def restarts(self, job: str) -> int:
        """Return how often Slurm has given the job's nodes back."""
        return int(self.cluster.user("scontrol", "--oneliner", "show", "job", job).split("Restarts=")[1].split()[0])

    def await_step(self, step: int, driver: subprocess.Popen[bytes], attempt: int = 1) -> None:
        """Until an attempt has made ``step``; fails with what the driver said when that ended."""

        def there() -> bool:
            assert driver.poll() is None, self.outputs[self.drivers.index(driver)].read_text()[-4000:]
            return self.attempts() >= attempt and step <= max(self.steps(attempt), default=0)

        until(there, WAIT_SECONDS, f"step {step} of attempt {attempt}")

    def await_new_step(self, driver: subprocess.Popen[bytes], after: int) -> int:
        """Until an attempt later than ``after`` has made a step; returns its number."""

        def there() -> int:
            assert driver.poll() is None, self.outputs[self.drivers.index(driver)].read_text()[-4000:]
            return next((one for one in range(after + 1, self.attempts() + 1) if self.steps(one)), 0)

        until(there, WAIT_SECONDS, f"a step of an attempt after {after}")
        return there()

    def lost(self, attempt: int) -> int:
        """Return how many steps of an attempt the next one that made any made again."""
        later = next(one for one in range(attempt + 1, self.attempts() + 1) if self.steps(one))
        return max(self.steps(attempt)) - min(self.steps(later)) + 1

    def progress(self, since: float, attempt: int) -> float:
        """Return the seconds from ``since`` (Unix) to the first step that no attempt up to ``attempt`` had made."""
        done = max(max(self.steps(one), default=0) for one in range(1, attempt + 1))
        later = [event for one in range(attempt + 1, self.attempts() + 1) for event in self.events(one, "step")]
        return min(event.time for event in later if event.data["step"] > done) - since


def on_host(case: OnSlurm, host: str, ranks: bool = True) -> list[int]:
    """Return the processes of a run on one host, in order: its ranks, or what they were forked from."""
    found = []
    for pid in case.owned():
        with contextlib.suppress(OSError):
            mine = f"SLURMD_NODENAME={host}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            starts = b"steelrail.launch.rank" in Path(f"/proc/{pid}/cmdline").read_bytes()
            if mine and starts and Path(f"/proc/{pid}/comm").read_text().startswith("rank-") == ranks:
                found.append(pid)
    return sorted(found)


def signal_rank(case: OnSlurm, host: str, what: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to the first rank on a host."""
    os.kill(on_host(case, host)[0], what)


def kill_driver(case: OnSlurm, driver: subprocess.Popen[bytes]) -> None:
    """Kill a driver on the head with what it started there; its job is left alone."""
    family = {driver.pid}
    while more := {pid for pid in case.owned() if pid not in family and parent(pid) in family}:
        family |= more
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    driver.wait(20)


def went_well(case: OnSlurm, driver: subprocess.Popen[bytes], calm: Curve, jobs: int = 1) -> None:
    """To the end, every loss as undisturbed, by so many jobs; nothing half-done in the store, no rank left."""
    done = case.finish(driver)
    assert done.code == 0, done.said[-6000:]
    assert case.endings()[-1] == "done"
    assert case.curve() == calm
    assert int(case.committed()[-1].split("-")[0]) == STEPS
    assert case.unfinished() == []
    known = json.loads((case.root.root / "jobs.json").read_text())
    assert len({job["job_id"] for job in known}) == jobs, known
    end = time.monotonic() + 60.0
    while left := [f"job {job}" for job in case.queued()] + [words(pid) for pid in case.owned()]:
        assert time.monotonic() < end, f"left behind: {left}"
        time.sleep(0.5)


def words(pid: int) -> str:
    """Return the command line of a process, empty when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


@contextlib.contextmanager
def spare(cluster: Cluster) -> Iterator[None]:
    """The fifth host is up."""
    cluster.control("spare", "up")
    try:
        yield
    finally:
        cluster.control("spare", "down")


def mend(cluster: Cluster) -> None:
    """Have the cluster as it was: every host up, the spare down, no job."""
    cluster.user("scancel", "--user=steelrail")
    cluster.control("spare", "down")
    run([str(SCRIPT), "up"], servers.PROJECT)
