"""Where a fabric job keeps its files, on the file system shared by head and nodes. Paths only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from steelrail.artifacts.files import results_folder
from steelrail.config.schema import Run


@dataclass(frozen=True)
class JobFolder:
    """Files of one fabric job, and of one try in it: ``try-1`` and so on below it, each with files of its own.

    ``launch`` writes ``run_file`` before ranks start; rank 0 writes ``report`` last.
    """

    root: Path

    @property
    def run_file(self) -> Path:
        """Resolved configuration (JSON of ``Run``)."""
        return self.root / "run.json"

    @property
    def before(self) -> Path:
        """Report of the job whose unfit nodes are left out of this one; missing in a job that leaves nobody out."""
        return self.root / "before.json"

    @property
    def report(self) -> Path:
        """What the ranks found (``fabric.facts.Facts``)."""
        return self.root / "report.json"

    @property
    def log(self) -> Path:
        """Standard output and error of the ranks, each line marked with its rank."""
        return self.root / "ranks.log"

    def tries(self) -> tuple[JobFolder, ...]:
        """Return the tries that there were, oldest first."""
        folders = [path for path in self.root.glob("try-*") if path.name[4:].isdigit()]
        return tuple(JobFolder(path) for path in sorted(folders, key=lambda path: int(path.name[4:])))

    def next_try(self) -> JobFolder:
        """Return where the next try keeps its files. A requeued job goes on counting."""
        return JobFolder(self.root / f"try-{len(self.tries()) + 1}")

    def error(self, rank: int) -> Path:
        """Why a rank ended (``fabric.facts.RankError``)."""
        return self.root / f"error-rank-{rank:05d}.json"

    def doing(self, rank: int) -> Path:
        """Where a rank is (``fabric.whereabouts.Whereabouts``)."""
        return self.root / f"doing-rank-{rank:05d}.json"

    def stacks(self, rank: int) -> Path:
        """The stacks of a rank's threads, written when it was asked for them and when its time was nearly over."""
        return self.root / f"stacks-rank-{rank:05d}.txt"

    def nccl_log(self, rank: int) -> Path:
        """What NCCL wrote in a rank."""
        return self.root / f"nccl-rank-{rank:05d}.log"


def fabric_folder(run: Run) -> Path:
    """Return the stage's own folder: ``results/<run>/fabric``."""
    return results_folder(run) / "fabric"
