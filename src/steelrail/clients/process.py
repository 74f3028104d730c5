"""The door to other programs: argument lists, never a shell, always with a time-out."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from steelrail.artifacts.files import on_results

TIMED_OUT = 124


@dataclass(frozen=True)
class Completed:
    """How a program ended. ``exit_code`` is ``TIMED_OUT`` when it was killed for taking too long."""

    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        """Whether it ended with exit code 0."""
        return self.exit_code == 0


def run(argv: Sequence[str], timeout_seconds: float, env: Mapping[str, str] | None = None) -> Completed:
    """Run a program to its end and return what it said. Raises ``FileNotFoundError`` when it is not installed."""
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_seconds,
            env=None if env is None else dict(env),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return Completed(tuple(argv), TIMED_OUT, _text(error.stdout), f"timed out after {timeout_seconds} s")
    return Completed(tuple(argv), done.returncode, _text(done.stdout), _text(done.stderr))


def start(
    argv: Sequence[str],
    env: Mapping[str, str],
    output: Path,
    cwd: Path | None = None,
    new_session: bool = False,
    told: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a program that runs on; its output and errors are appended to ``output``. Raises ``FullError``.

    ``told``: its standard input is a pipe of ours, by which it will be told something.
    """
    with on_results(output):
        output.parent.mkdir(parents=True, exist_ok=True)
    with on_results(output), output.open("ab") as file:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE if told else subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=cwd,
            start_new_session=new_session,
        )


def alive(pid: int) -> bool:
    """Return whether a process of this host exists and has not ended (a zombie has)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return fields.rpartition(")")[2].split()[0] not in ("Z", "X")


def start_ticks(pid: int) -> int | None:
    """Return the clock tick since boot at which a process of this host began, or none when it is gone."""
    try:
        # proc(5): the command may hold spaces and brackets, so count after its last bracket.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return None


def oom_kills() -> int:
    """Return how many processes this host's kernel has killed for want of memory since boot, in any cgroup."""
    counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(counts.get("oom_kill", 0))  # since Linux 4.13


def started(pid: int) -> float | None:
    """Return when a process of this host began (Unix seconds), or none when it is gone."""
    ticks = start_ticks(pid)
    if ticks is None:
        return None
    # /proc/stat's btime is in whole seconds; the two clocks read now are exact to a tick.
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return boot + ticks / os.sysconf("SC_CLK_TCK")


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "replace")


@contextlib.contextmanager
def memory_limited(size_bytes: int) -> Iterator[None]:
    """Let this process take at most so much more memory of its own for a while (files mapped do not count).

    What asks for more hears ``MemoryError``, and the host's other processes nothing.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = _data_bytes() + size_bytes
    for limit in (hard, soft):
        most = most if limit == resource.RLIM_INFINITY else min(most, limit)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_bytes() -> int:
    """What the limit counts, now. proc(5): statm's sixth number is data and stack, in pages."""
    return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
