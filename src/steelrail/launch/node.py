"""The ranks of one node, forked from one process: ``python -m steelrail.launch.node RANKS LOG MODULE ARGUMENT...``.

An edge. Loading torch takes seconds of a CPU and is the larger part of a start; here a node pays once, not once a rank.
``MODULE.main`` is the rank; ``MODULE.PRELOAD`` names the modules that bring what is heavy. This process stays and does
nothing but pass on what its ranks write, each line marked with its rank, and notice how they end: one that ends badly
takes the others of the node with it, and srun's --kill-on-bad-exit those of the other nodes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from steelrail import log
from steelrail.artifacts.files import on_results
from steelrail.artifacts.trainer import CLEAN_EXITS, EXIT_DONE, EXIT_ERROR, EXIT_FULL, exit_code_of
from steelrail.clients import clock, process
from steelrail.clients.ends import OUT_OF_MEMORY, ends_file, write_end
from steelrail.clients.ranks import NODE_STARTED, RankPlace, rank_place
from steelrail.errors import FullError
from steelrail.formats.srun import TaskEnd
from steelrail.launch.pulse import SAVE_SIGNALS

_log = log.logger(__name__)
# Before the module: load everything, then wait for a line on standard input.
WAIT = "--wait"
_LOOK_SECONDS = 0.05
_WORD_SECONDS = 0.2
_READ_BYTES = 64 * 1024
# More than a pipe holds: a rank that writes without a pause must not keep us from the others.
_READS = 16
# A line is cut where it is longer, or where its end does not come: a prompt, or a bar that only returns.
_HELD_BYTES, _HELD_SECONDS = 64 * 1024, 2.0
# Ranks that fail together each say why; one that still waits for a rank that is gone has nothing to say.
_LEAVE_SECONDS = 2.0
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
TAKEN_DOWN = "Terminated with the other ranks of its node"


@dataclass
class Member:
    """One rank as its node's process sees it: process, the pipe it writes to, and what it wrote of a line so far."""

    rank: int
    pid: int
    pipe: int
    held: bytearray = field(default_factory=bytearray)
    held_since: float = 0.0
    open: bool = True
    code: int | None = None


@dataclass
class Node:
    """The ranks of this node, and what became of them."""

    place: RankPlace
    ends: Path
    parent: int
    members: list[Member] = field(default_factory=list)
    failed: float | None = None
    bad: int = 0
    taken_down: bool = False
    oom_kills: int = field(default_factory=process.oom_kills)

    @property
    def living(self) -> list[Member]:
        """The ranks that have not ended."""
        return [one for one in self.members if one.code is None]

    def signal(self, number: int) -> None:
        """Send a signal to every rank that lives."""
        for one in self.living:
            os.kill(one.pid, number)


def main(argv: Sequence[str]) -> int:
    """Fork the ranks and return, once all are gone, the exit code of the first that ended badly; else the greatest.

    ``EXIT_FULL`` where what they write can no longer be kept.
    """
    count, output, *rest = argv[1:]
    waits = rest[0] == WAIT
    module, *arguments = rest[1:] if waits else rest
    parent = os.getppid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SAVE_SIGNALS)
    # Meant for the ranks, which write their stacks on it.
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    log.configure()
    _load(module)
    if waits and not _told_to_go(parent):
        return EXIT_DONE
    place = rank_place()
    node = Node(place, ends_file(Path(output), place.node_rank), parent)

    def live() -> int:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return int(importlib.import_module(module).main([module, *arguments]))

    _fork(node, int(count), live)
    # What came while there were no ranks yet is theirs.
    for number in signal.sigpending() & set(SAVE_SIGNALS):
        node.signal(number)
    try:
        return _attend(node)
    except FullError:
        node.signal(signal.SIGKILL)
        return EXIT_FULL


def _load(module: str) -> None:
    """Load what the ranks need. What cannot be loaded is left to each rank, which can say so where it is read."""
    with _left_to_the_ranks():
        for heavy in getattr(importlib.import_module(module), "PRELOAD", ()):
            with _left_to_the_ranks():
                importlib.import_module(heavy)
    if threading.active_count() > 1:
        _log.warning("threads that no rank will have: %s", [one.name for one in threading.enumerate()[1:]])
    # Objects that never die stay out of the collector's way, and their pages shared.
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def _left_to_the_ranks() -> Iterator[None]:
    try:
        yield
    except Exception:  # noqa: BLE001
        _log.warning("the ranks load for themselves:\n%s", traceback.format_exc())


def _told_to_go(parent: int) -> bool:
    """Wait for the word that the ranks may begin, and take over what it says of their environment.

    False where it will never come: whoever started this process is gone or wants it no more, or Slurm takes the node.
    """
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([0], [], [], _WORD_SECONDS)
        if signal.SIGTERM in signal.sigpending() or os.getppid() != parent:
            return False
        if ready and not (chunk := os.read(0, _READ_BYTES)):
            return False
        line += chunk if ready else b""
    os.environ.update({**json.loads(line), NODE_STARTED: str(clock.now())})
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # What was meant for the ranks of the attempt before.
    while signal.sigtimedwait(SAVE_SIGNALS, 0) is not None:
        pass
    return True


def _fork(node: Node, count: int, live: Callable[[], int]) -> None:
    for local_rank in range(count):
        rank = node.place.node_rank * count + local_rank
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _be_rank(rank, _place(node.place, rank, local_rank, count), writing, live)
        os.close(writing)
        os.set_blocking(reading, False)
        node.members.append(Member(rank, pid, reading))


def _place(at: RankPlace, rank: int, local_rank: int, count: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(at.num_nodes * count),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(count),
        "GROUP_RANK": str(at.node_rank),
        "NUM_NODES": str(at.num_nodes),
        "STEELRAIL_HOST": at.host,
        NODE_STARTED: os.environ.get(NODE_STARTED) or str(process.started(os.getppid()) or clock.now()),
    }


def _be_rank(rank: int, place: dict[str, str], output: int, live: Callable[[], int]) -> NoReturn:
    """Be a rank to the end of this process. Nothing of the parent's own ending may run here."""
    code = EXIT_ERROR
    try:
        _die_with(os.getppid(), rank)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        os.environ.update(place)
        code = live()
    except BaseException as error:  # noqa: BLE001  (the last place where this process can say what happened)
        code = exit_code_of(error)
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _die_with(parent: int, rank: int) -> None:
    """Have the kernel end this rank when its node's process is gone, and show its number in ``ps``."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() != parent:
        os._exit(EXIT_ERROR)
    # Without a space: Slurm's proctrack/linuxproc reads it with scanf, and would signal no rank.
    libc.prctl(_PR_SET_NAME, f"rank-{rank}".encode(), 0, 0, 0)


def _attend(node: Node) -> int:
    """Pass on output and notice ends until no rank is left."""
    while node.living:
        _pass_on(node, _LOOK_SECONDS)
        for one in node.living:
            _notice(node, one)
        _take_down_if_due(node)
    _pass_on(node, 0.0)
    for one in node.members:
        _let_go(one)
    return node.bad or max((one.code or 0 for one in node.members), default=0)


def _notice(node: Node, one: Member) -> None:
    pid, status = os.waitpid(one.pid, os.WNOHANG)
    if pid == 0:
        return
    code = os.waitstatus_to_exitcode(status)
    one.code = 128 - code if code < 0 else code
    if code in CLEAN_EXITS:
        return
    how = f"Exited with exit code {code}" if code > 0 else signal.strsignal(-code) or f"Signal {-code}"
    if code == -signal.SIGKILL:
        how = TAKEN_DOWN if node.taken_down else _who_killed(node, how)
    write_end(node.ends, TaskEnd(one.rank, node.place.host, how, code if code > 0 else None))
    node.failed = clock.monotonic() if node.failed is None else node.failed
    node.bad = node.bad or one.code


def _who_killed(node: Node, how: str) -> str:
    """Say that it was the kernel for want of memory, where its count tells: a step's end is no word of one rank."""
    killed = process.oom_kills() - node.oom_kills
    return f"{OUT_OF_MEMORY}, it seems: the kernel killed {killed} for that on this host meanwhile" if killed else how


def _take_down_if_due(node: Node) -> None:
    """End the others some time after one failed, and at once when whoever started this process is gone."""
    late = node.failed is not None and clock.monotonic() - node.failed > _LEAVE_SECONDS
    if late or os.getppid() != node.parent:
        node.taken_down = True
        node.signal(signal.SIGKILL)


def _pass_on(node: Node, seconds: float) -> None:
    """Wait at most ``seconds`` for output, and pass on the whole lines of what is there, and what waited too long."""
    by_pipe = {one.pipe: one for one in node.members if one.open}
    ready, _, _ = select.select(list(by_pipe), [], [], seconds)
    for pipe in ready:
        for _ in range(_READS):
            chunk = _read(by_pipe[pipe])
            if not chunk:
                break
            _take(by_pipe[pipe], chunk)
    for one in node.members:
        if one.held and clock.monotonic() - one.held_since > _HELD_SECONDS:
            _let_go(one)


def _take(one: Member, chunk: bytes) -> None:
    """Pass on the lines that ``chunk`` ends, and hold what it begins. Every byte is looked at once."""
    end = chunk.rfind(b"\n") + 1
    if end:
        _write(one, bytes(one.held) + chunk[:end])
        one.held.clear()
    if not one.held:
        one.held_since = clock.monotonic()
    one.held += chunk[end:]
    if len(one.held) >= _HELD_BYTES:
        _let_go(one)


def _let_go(one: Member) -> None:
    """Pass on what is held as a line of its own, its end there or not."""
    if one.held:
        _write(one, bytes(one.held) + b"\n")
        one.held.clear()


def _read(one: Member) -> bytes:
    """Return what a rank wrote since; nothing for now, or for ever once it has closed its pipe."""
    try:
        chunk = os.read(one.pipe, _READ_BYTES)
    except BlockingIOError:
        return b""
    one.open = bool(chunk)
    return chunk


def _write(one: Member, text: bytes) -> None:
    marked = b"".join(b"%d: " % one.rank + line + b"\n" for line in text.split(b"\n")[:-1])
    with on_results(Path("the log of the ranks")):
        while marked:
            marked = marked[os.write(sys.stdout.fileno(), marked) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv))
