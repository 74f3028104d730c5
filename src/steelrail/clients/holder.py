"""Which process holds something, and whether it still lives: a pid alone is not enough, pids come back."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Holder:
    """A process: its host, its pid, and the clock tick since boot at which it started."""

    host: str
    pid: int
    start_ticks: int

    def text(self) -> str:
        """Return one word that ``parse`` takes back."""
        return f"{self.host}:{self.pid}:{self.start_ticks}"

    @staticmethod
    def parse(text: str) -> Holder:
        """Return the holder written by ``text``."""
        host, pid, start = text.rsplit(":", 2)
        return Holder(host, int(pid), int(start))

    def lives(self) -> bool:
        """Say whether the process is there. One on another host cannot be seen and counts as alive."""
        return self.host != socket.gethostname() or _start_ticks(self.pid) == self.start_ticks


def this_process() -> Holder:
    """Return the process that calls."""
    pid = os.getpid()
    return Holder(socket.gethostname(), pid, _start_ticks(pid) or 0)


def _start_ticks(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # proc(5): the command may hold spaces and brackets, so count after its last bracket; a zombie is not alive.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])
