"""Ranks as processes of this host, for the local executor: the same contract without Slurm. An edge."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from steelrail.clients import clock
from steelrail.config.schema import Run
from steelrail.formats.srun import TaskEnd

_KILL_WAIT_SECONDS = 10.0


@dataclass
class LocalRanks:
    """The ranks as children of this process. One that ends badly takes the others with it, as srun's -K does."""

    processes: Sequence[subprocess.Popen[bytes]]
    readers: Sequence[threading.Thread]
    host: str
    _ends: list[TaskEnd] = field(default_factory=list)
    _failed: float | None = None
    _told: bool = False

    def poll(self) -> int | None:
        """Return the worst exit code once all are gone."""
        self._notice()
        if any(one.poll() is None for one in self.processes):
            self._take_others_down()
            return None
        for reader in self.readers:
            reader.join(5.0)
        return max(_shell_code(one.returncode) for one in self.processes)

    def step_id(self) -> str | None:
        """Local ranks have no job step; the first one's process id stands for it."""
        return f"pid.{self.processes[0].pid}"

    def signal(self, name: str) -> None:
        """Send a signal to every rank that lives."""
        for one in self.processes:
            if one.poll() is None:
                one.send_signal(getattr(signal, f"SIG{name}"))

    def kill(self) -> None:
        """End every rank now."""
        self.signal("KILL")
        for one in self.processes:
            one.wait()

    def task_ends(self) -> Sequence[TaskEnd]:
        """Return how ranks ended, in the order in which it was noticed."""
        return tuple(self._ends)

    def _notice(self) -> None:
        known = {end.rank for end in self._ends}
        for rank, one in enumerate(self.processes):
            code = one.poll()
            if code and rank not in known:
                how = f"Exited with exit code {code}" if code > 0 else signal.strsignal(-code) or f"signal {-code}"
                self._ends.append(TaskEnd(rank, self.host, how, code if code > 0 else None))
                self._failed = self._failed or clock.monotonic()

    def _take_others_down(self) -> None:
        if self._failed is None:
            return
        late = clock.monotonic() - self._failed
        if late > _KILL_WAIT_SECONDS:
            self.signal("KILL")
        elif late > 1.0 and not self._told:
            self._told = True
            self.signal("TERM")


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

    def start(self, module: Sequence[str], env: Mapping[str, str], name: str, output: Path) -> LocalRanks:
        """Start all ranks here."""
        output.parent.mkdir(parents=True, exist_ok=True)
        world = self.run.shape.world_size
        file = output.open("ab")
        pairs = [_start(module, {**os.environ, **env}, rank, world, file) for rank in range(world)]
        return LocalRanks([one for one, _ in pairs], [reader for _, reader in pairs], self.host)

    def requeue(self, exclude: Sequence[str]) -> bool:
        """There is no queue."""
        return False


def _start(
    module: Sequence[str], env: Mapping[str, str], rank: int, world: int, output: IO[bytes]
) -> tuple[subprocess.Popen[bytes], threading.Thread]:
    place = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world)}
    own = {name: value for name, value in env.items() if not name.startswith(("SLURM_", "GROUP_RANK", "NODE_RANK"))}
    one = subprocess.Popen(
        list(module), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**own, **place}
    )
    reader = threading.Thread(target=_label, args=(one.stdout, rank, output), daemon=True)
    reader.start()
    return one, reader


def _label(source: IO[bytes], rank: int, output: IO[bytes]) -> None:
    for line in source:
        output.write(b"%d: " % rank + line)
        output.flush()


def _shell_code(code: int) -> int:
    return 128 - code if code < 0 else code
