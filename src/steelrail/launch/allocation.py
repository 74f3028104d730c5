"""Where ranks run: the allocation that Slurm gave this job, and its job steps. An edge."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from steelrail.clients import clock, process
from steelrail.clients.ends import Starter, read_ends, srun_file
from steelrail.clients.ranks import NODES
from steelrail.clients.slurm import Slurm, SlurmAway, without_slurm
from steelrail.config.schema import Run
from steelrail.errors import ClusterError
from steelrail.formats.hostlist import expand
from steelrail.formats.scontrol import JobView
from steelrail.formats.srun import TaskEnd
from steelrail.launch import container
from steelrail.launch.container import Credentials
from steelrail.launch.inputs import left_out
from steelrail.launch.node import WAIT
from steelrail.launch.request import CREDENTIAL_FILES, CREDENTIAL_PLACES, gpu_options
from steelrail.log import logger

_log = logger(__name__)
_END_SECONDS = 15.0
_NODE_MODULE = "steelrail.launch.node"
T = TypeVar("T")


class Ranks(Protocol):
    """The ranks of one attempt."""

    def poll(self) -> int | None:
        """Return their exit code once all are gone, else none."""

    def step_id(self) -> str | None:
        """Return the job step's id once it is known."""

    def signal(self, name: str) -> None:
        """Send a signal (``USR2``) to every rank."""

    def kill(self) -> None:
        """End every rank now."""

    def task_ends(self) -> Sequence[TaskEnd]:
        """Return how ranks ended, in the order in which it was noticed."""

    def go(self, env: Mapping[str, str]) -> None:
        """Let ranks begin that wait, with so much more in their environment. Raises ``OSError`` where they cannot."""

    def dismiss(self) -> None:
        """End ranks that wait and will not be let go."""

    def starter_killed(self) -> str | None:
        """Return, in words, which signal ended the process of this host that starts them; none when none did."""


class Allocation(Protocol):
    """What the supervisor was given to run on."""

    @property
    def job_id(self) -> str:
        """The job."""

    @property
    def segment(self) -> int:
        """How often the job was put back into the queue before."""

    @property
    def host(self) -> str:
        """The host of the supervisor."""

    def nodes(self) -> tuple[str, ...]:
        """Return all nodes that are held, spares included, in Slurm's order."""

    def started(self) -> float:
        """Return when this segment began (Unix seconds)."""

    def ends(self) -> float | None:
        """Return when the time limit ends it (Unix seconds), or none."""

    def mine(self) -> bool:
        """Return whether this segment still is the job's newest and runs. Waits while Slurm is away."""

    def lost(self) -> tuple[str, ...]:
        """Return the nodes that Slurm has given up."""

    def preempting(self) -> bool:
        """Return whether Slurm has begun to take the nodes away."""

    def start(
        self,
        module: Sequence[str],
        nodes: Sequence[str],
        env: Mapping[str, str],
        name: str,
        output: Path,
        wait: bool = False,
    ) -> Ranks:
        """Start the ranks on nodes, the one of rank 0 first; each is ``main`` of a module with arguments.

        Output goes to ``output``, each line marked with its rank. With ``wait`` all is loaded, then ``go`` awaited.
        """

    def requeue(self, exclude: Sequence[str]) -> bool:
        """Give the nodes back and queue again, without the nodes ``exclude``; false where there is no queue."""


@dataclass
class Started(ABC):
    """Ranks that a process of this host started: what is the same under Slurm and without it."""

    starter: Starter
    log: Path
    ranks_per_node: int

    def poll(self) -> int | None:
        """Return the starter's exit code once it is gone, and the ranks with it."""
        return self.starter.exit_code()

    def task_ends(self) -> Sequence[TaskEnd]:
        """Return how ranks ended, in the order in which it was noticed: what the nodes' processes and srun saw."""
        return read_ends(self.log, self.ranks_per_node)

    def go(self, env: Mapping[str, str]) -> None:
        """Let ranks begin that wait; srun gives the word to every node."""
        self.starter.tell(env)

    def dismiss(self) -> None:
        """End ranks that wait: the nodes' processes leave once nobody can give the word."""
        if not self.starter.dismiss():
            self.kill()

    def starter_killed(self) -> str | None:
        """Return which signal ended the starter."""
        return self.starter.killed()

    @abstractmethod
    def kill(self) -> None:
        """End every rank now."""


@dataclass
class Step(Started):
    """The ranks as one job step of ``srun``."""

    slurm: Slurm
    job_id: str
    name: str
    _id: str | None = None
    _asked: float = field(default=float("-inf"))

    def step_id(self) -> str | None:
        """Ask Slurm for the step's id, at most once a second."""
        if self._id is None and clock.monotonic() - self._asked > 1.0:
            self._asked = clock.monotonic()
            self._id = self.slurm.steps(self.job_id).get(self.name)
        return self._id

    def signal(self, name: str) -> None:
        """Send a signal to the step; its srun is not touched."""
        step_id = self.step_id()
        if step_id is None:
            _log.warning("%s has no job step yet, %s is not sent", self.name, name)
            return
        self.slurm.signal(step_id, name)

    def kill(self) -> None:
        """Kill the step; where Slurm does not manage, end our srun, which then cleans up."""
        try:
            self.signal("KILL")
            self.starter.process.wait(_END_SECONDS)
        except (subprocess.TimeoutExpired, ClusterError) as error:
            _log.warning("%s did not end on SIGKILL (%s): ending its srun", self.name, error)
            self.starter.process.terminate()
            self._end_srun()

    def _end_srun(self) -> None:
        try:
            self.starter.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.starter.process.kill()
            self.starter.process.wait()


@dataclass(frozen=True)
class SlurmAllocation:
    """The allocation of the batch job in which this process runs."""

    run: Run
    slurm: Slurm
    job_id: str
    segment: int
    host: str
    node_names: tuple[str, ...]

    @classmethod
    def here(cls, run: Run, slurm: Slurm) -> SlurmAllocation:
        """Return the allocation that this process's environment names."""
        env = os.environ
        host = env.get("SLURMD_NODENAME") or socket.gethostname()
        nodes = expand(env["SLURM_JOB_NODELIST"])
        return cls(run, slurm, env["SLURM_JOB_ID"], int(env.get("SLURM_RESTART_COUNT", "0")), host, nodes)

    def nodes(self) -> tuple[str, ...]:
        """Return what the allocation began with; nodes that Slurm lost since are still among them."""
        return self.node_names

    def started(self) -> float:
        """Return Slurm's start time of this segment."""
        view = self._view()
        return view.started if view and view.started else clock.now()

    def ends(self) -> float | None:
        """Return Slurm's end time, which an operator may have moved."""
        view = self._view()
        return view.ends if view else None

    def mine(self) -> bool:
        """Compare what the controller says with what we were started as: a requeued job has another segment."""
        view = self._sure_view()
        same = view is not None and view.restarts == self.segment and view.state == "RUNNING"
        return same and view is not None and view.batch_host in (None, self.host)

    def lost(self) -> tuple[str, ...]:
        """Return our nodes that Slurm calls down."""
        try:
            return tuple(node.name for node in self.slurm.nodes(self.node_names) if node.lost)
        except ClusterError:
            return ()

    def preempting(self) -> bool:
        """Return whether the controller has set a time at which the nodes go."""
        view = self._view()
        return view is not None and view.preempted is not None

    def start(
        self,
        module: Sequence[str],
        nodes: Sequence[str],
        env: Mapping[str, str],
        name: str,
        output: Path,
        wait: bool = False,
    ) -> Step:
        """Start the ranks by srun in this allocation."""
        known = _credentials(os.environ)
        program = node_argv(self.run.shape.ranks_per_node, module, output, wait)
        env = {**env, NODES: ",".join(nodes)}
        inside = [*container.srun_options(self.run, env, known), *container.program(self.run, program, known)]
        argv = [*srun_argv(self.run, self.job_id, nodes, name, output), *inside]
        around = {**without_slurm(os.environ), **container.environment(self.run, env)}
        srun = Starter("srun, which starts the ranks,", process.start(argv, around, srun_file(output), told=wait))
        return Step(srun, output, self.run.shape.ranks_per_node, self.slurm, self.job_id, name)

    def requeue(self, exclude: Sequence[str]) -> bool:
        """Requeue ourselves, then leave nodes out while others remain; Slurm takes that only of a job in the queue."""
        keep = _persist(lambda: _still_enough(self.slurm, self.run, exclude))
        _persist(lambda: self.slurm.requeue(self.job_id))
        if keep:
            _persist(lambda: self.slurm.update(self.job_id, ExcNodeList=",".join(keep)))
        return True

    def _view(self) -> JobView | None:
        try:
            return self.slurm.job(self.job_id)
        except SlurmAway:
            return None

    def _sure_view(self) -> JobView | None:
        return _persist(lambda: self.slurm.job(self.job_id))


def _credentials(env: Mapping[str, str]) -> Credentials:
    """Where credentials are on this host, which stands for all nodes: what is not there cannot be mounted."""
    folder = [Path(env["HOME"], ".aws")] if "HOME" in env else []
    places = [*folder, *(Path(env[name]) for name in CREDENTIAL_FILES if env.get(name))]
    names = ("HOME", *CREDENTIAL_PLACES)
    return Credentials(tuple(path for path in places if path.exists()), tuple(name for name in names if name in env))


def _persist(call: Callable[[], T]) -> T:
    """Return what Slurm answers, however long it is away: nothing may be decided without it."""
    while True:
        try:
            return call()
        except SlurmAway as error:
            _log.warning("waiting for Slurm: %s", error)


def node_argv(ranks: int, module: Sequence[str], output: Path, wait: bool) -> list[str]:
    """Return the command of one node's process, from which its ``ranks`` are forked. Pure."""
    waiting = [WAIT] if wait else []
    return [sys.executable, "-u", "-m", _NODE_MODULE, str(ranks), str(output), *waiting, *module]


def srun_argv(run: Run, job_id: str, nodes: Sequence[str], name: str, output: Path) -> list[str]:
    """Return the ``srun`` command of one attempt, up to the program. Pure.

    Everything is said anew, because what the batch script inherited is taken out of srun's environment.
    """
    shape = run.shape
    gpus = [f"--{option.replace('_', '-')}={value}" for option, value in gpu_options(run).items()]
    return [
        "srun",
        f"--jobid={job_id}",
        f"--job-name={name}",
        f"--nodes={shape.nodes}",
        f"--nodelist={','.join(nodes)}",
        f"--ntasks={shape.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={shape.ranks_per_node * run.slurm.cpus_per_rank}",
        *gpus,
        "--mem=0",
        "--distribution=block",
        "--cpu-bind=none",
        # A step that a lost node keeps from ending holds what it had.
        "--overlap",
        "--kill-on-bad-exit=1",
        "--unbuffered",
        "--open-mode=append",
        f"--output={output}",
        "--export=ALL",
    ]


def _still_enough(slurm: Slurm, run: Run, exclude: Sequence[str]) -> list[str]:
    """Return what may be left out: everything asked for, if enough nodes that are up remain; else nothing."""
    if not exclude:
        return []
    offers = slurm.partition(run.slurm.partition)
    out = {*exclude, *run.slurm.exclude, *left_out(run)}
    remaining = [one for one in offers if one.up and one.name not in out]
    if len(remaining) >= run.held_nodes:
        return sorted(out)
    _log.warning(
        "not leaving out %s: only %d other nodes are up, %d are needed",
        ", ".join(exclude),
        len(remaining),
        run.held_nodes,
    )
    return []
