"""Ranks as processes of this host, for the local executor: the same contract without Slurm. An edge."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from steelrail.clients import clock, process
from steelrail.clients.ends import Starter
from steelrail.config.schema import Run
from steelrail.launch.allocation import Started, node_argv

# One node, whose process is the only one of its kind; what an outer Slurm or torchrun says is not about it.
_ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
_NOT_OURS = ("SLURM_", "GROUP_RANK", "NODE_RANK", "NUM_NODES")


@dataclass
class LocalRanks(Started):
    """The ranks of this host: the process that they are forked from leads a group of processes of their own."""

    def step_id(self) -> str | None:
        """Local ranks have no job step; their node's process id stands for it."""
        return f"pid.{self.starter.process.pid}"

    def signal(self, name: str) -> None:
        """Send a signal to every rank that lives."""
        if self.starter.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.starter.process.pid, getattr(signal, f"SIG{name}"))

    def kill(self) -> None:
        """End every rank now."""
        self.signal("KILL")
        self.starter.process.wait()


@dataclass(frozen=True)
class LocalAllocation:
    """This host, for as long as the supervisor lives."""

    run: Run
    job_id: str
    host: str
    began: float
    segment: int = 0

    @classmethod
    def here(cls, run: Run) -> LocalAllocation:
        """Return this host as the allocation of the local job that this process is."""
        return cls(run, os.environ.get("SUBMITIT_LOCAL_JOB_ID", str(os.getpid())), socket.gethostname(), clock.now())

    def nodes(self) -> tuple[str, ...]:
        """Return this host."""
        return (self.host,)

    def started(self) -> float:
        """Return when the supervisor began."""
        return self.began

    def ends(self) -> float | None:
        """A local job has no time limit."""
        return None

    def mine(self) -> bool:
        """A local job is nobody else's."""
        return True

    def lost(self) -> tuple[str, ...]:
        """This host is there."""
        return ()

    def preempting(self) -> bool:
        """Nobody preempts a local job."""
        return False

    def start(
        self,
        module: Sequence[str],
        nodes: Sequence[str],
        env: Mapping[str, str],
        name: str,
        output: Path,
        wait: bool = False,
    ) -> LocalRanks:
        """Start all ranks here."""
        own = {key: value for key, value in {**os.environ, **env}.items() if not key.startswith(_NOT_OURS)}
        around = {**own, **_ALONE, "STEELRAIL_HOST": self.host.split(".")[0]}
        ranks = self.run.shape.world_size
        node = process.start(node_argv(ranks, module, output, wait), around, output, new_session=True, told=wait)
        return LocalRanks(Starter("the process that the ranks are forked from", node), output, ranks)

    def requeue(self, exclude: Sequence[str]) -> bool:
        """There is no queue."""
        return False
