"""The door to how ranks ended: what their node's process saw of each, and what srun saw of those processes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from steelrail.artifacts.files import on_results
from steelrail.artifacts.trainer import EXIT_SAVED
from steelrail.formats.srun import TaskEnd, parse_task_ends

_OUT_OF_MEMORY = "Out Of Memory"


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
        if not own and whole is not None and whole.exit_code != EXIT_SAVED:
            own = (replace(whole, rank=node * ranks_per_node),)
        if any(end.rank == node and end.out_of_memory for end in processes):
            own = tuple(replace(end, how=_OUT_OF_MEMORY) if end.killed else end for end in own)
        found += own
    return tuple(found)


def _read(path: Path) -> tuple[TaskEnd, ...]:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    return tuple(TaskEnd(**json.loads(line)) for line in lines)
