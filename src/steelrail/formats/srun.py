"""What ``srun`` says on its standard error about the ends of its tasks. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from steelrail.formats.hostlist import expand

_ENDED = re.compile(r"^srun: error: (?P<host>\S+): tasks? (?P<tasks>[\d,\-]+): (?P<how>.+)$", re.MULTILINE)
_EXIT_CODE = re.compile(r"Exited with exit code (\d+)")


@dataclass(frozen=True)
class TaskEnd:
    """How one task ended, as srun saw it. ``exit_code`` is none for a signal; ``how`` is Slurm's text."""

    rank: int
    host: str
    how: str
    exit_code: int | None

    @property
    def killed(self) -> bool:
        """Whether a signal other than a passed-on TERM ended it."""
        return self.exit_code is None and not self.how.startswith("Terminated")

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel or Slurm ended it for its memory."""
        return "Out Of Memory" in self.how


def parse_task_ends(text: str) -> tuple[TaskEnd, ...]:
    """Return the ends in the order in which srun reported them."""
    return tuple(end for match in _ENDED.finditer(text) for end in _ends(match))


def _ends(match: re.Match[str]) -> list[TaskEnd]:
    code = _EXIT_CODE.search(match["how"])
    ranks = [int(number) for number in expand(f"[{match['tasks']}]")]
    return [TaskEnd(rank, match["host"], match["how"].strip(), int(code.group(1)) if code else None) for rank in ranks]
