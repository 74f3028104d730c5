"""The door to how ranks ended: what their node's process saw of each, and what srun saw of those processes."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from steelrail.artifacts.files import on_results
from steelrail.artifacts.reading import parsed, reading
from steelrail.artifacts.trainer import CLEAN_EXITS
from steelrail.clients.process import oom_kills
from steelrail.formats.srun import TaskEnd, parse_task_ends

# For a node's process that is still loading: it listens once it has loaded.
_DISMISSED_SECONDS = 3.0
OUT_OF_MEMORY = "Out Of Memory"


def ends_file(log: Path, node_rank: int) -> Path:
    """Return where the process of one node writes how its ranks ended badly, beside their log."""
    return log.with_suffix(f".ends-{node_rank:05d}")


def srun_file(log: Path) -> Path:
    """Return where srun's own messages on the ranks of a log go."""
    return log.with_suffix(".srun")


def write_end(path: Path, end: TaskEnd) -> None:
    """Append one end, a line of its own. Raises ``FullError``."""
    with on_results(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(end)) + "\n")


def read_ends(log: Path, ranks_per_node: int) -> tuple[TaskEnd, ...]:
    """Return how the ranks that write to ``log`` ended badly so far, in the order in which it was noticed."""
    messages = srun_file(log)
    said = parse_task_ends(messages.read_text(errors="replace")) if messages.exists() else ()
    paths = {int(path.name.rpartition("-")[2]): path for path in log.parent.glob(f"{log.stem}.ends-*")}
    return merge_ends({node: _read(path) for node, path in sorted(paths.items())}, said, ranks_per_node)


def merge_ends(
    nodes: dict[int, tuple[TaskEnd, ...]], processes: Sequence[TaskEnd], ranks_per_node: int
) -> tuple[TaskEnd, ...]:
    """Return one list of the ranks' ends, from those of each node and those that srun saw of the nodes' processes.

    srun alone sees all nodes on one clock, and memory running out; where a node's process said nothing (it was killed
    itself) its first rank stands for the node. Pure.
    """
    seen = {end.rank: end for end in reversed(processes)}
    order = [*dict.fromkeys(end.rank for end in processes), *(node for node in nodes if node not in seen)]
    found: list[TaskEnd] = []
    for node in order:
        own, whole = nodes.get(node, ()), seen.get(node)
        if not own and whole is not None and whole.exit_code not in CLEAN_EXITS:
            own = (replace(whole, rank=node * ranks_per_node),)
        if any(end.rank == node and end.out_of_memory for end in processes):
            own = tuple(replace(end, how=OUT_OF_MEMORY) if end.killed else end for end in own)
        found += own
    return tuple(found)


@dataclass(frozen=True)
class Starter:
    """The process of this host that starts the ranks, ``name`` in words. ``oom_kills``: the kernel's count before it.

    The ranks end with it, and then none of them can say why.
    """

    name: str
    process: subprocess.Popen[bytes]
    oom_kills: int = field(default_factory=oom_kills)

    def exit_code(self) -> int | None:
        """Return its exit code once it has ended, as a shell says it: 128 and the number for a signal."""
        code = self.process.poll()
        return 128 - code if code is not None and code < 0 else code

    def tell(self, words: Mapping[str, str]) -> None:
        """Tell a process that waits for it what it still has to know, and no more. Raises ``BrokenPipeError``."""
        if self.process.stdin is not None:
            self.process.stdin.write(json.dumps(dict(words)).encode() + b"\n")
            self.process.stdin.close()

    def dismiss(self) -> bool:
        """End its wait without a word; return whether it went by itself, as such a process does at once."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(_DISMISSED_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        return True

    def killed(self) -> str | None:
        """Return which signal ended it and what is known of who sent that, in words; none when no signal did."""
        code = self.process.poll()
        if code is None or code >= 0:
            return None
        how = f"{self.name} was killed by signal {-code} ({signal.strsignal(-code)})"
        if code != -signal.SIGKILL:
            return how
        killed = oom_kills() - self.oom_kills
        if killed > 0:
            return f"{how}: out of memory, it seems, as the kernel killed {killed} for that on this host meanwhile"
        return f"{how}, not by the kernel for want of memory"


def _read(path: Path) -> tuple[TaskEnd, ...]:
    with reading("ends of ranks", path):
        return tuple(parsed(TaskEnd, line) for line in path.read_bytes().split(b"\n")[:-1])
