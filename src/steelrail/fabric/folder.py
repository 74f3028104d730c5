"""Where a fabric job keeps its files, on the file system shared by head and nodes. Paths only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class JobFolder:
    """Files of one fabric job. ``launch`` writes ``run_file`` before the ranks start; rank 0 writes ``report`` last."""

    root: Path

    @property
    def run_file(self) -> Path:
        """Resolved configuration (JSON of ``Run``)."""
        return self.root / "run.json"

    @property
    def report(self) -> Path:
        """What the ranks found (``fabric.facts.Facts``)."""
        return self.root / "report.json"

    def error(self, rank: int) -> Path:
        """Why a rank ended (``fabric.facts.RankError``)."""
        return self.root / f"error-rank-{rank:05d}.json"

    def nccl_log(self, rank: int) -> Path:
        """What NCCL wrote in a rank."""
        return self.root / f"nccl-rank-{rank:05d}.log"


def fabric_folder(results: str, run: str) -> Path:
    """Return the stage's own folder: ``results/<run>/fabric``."""
    return Path(results) / run / "fabric"
