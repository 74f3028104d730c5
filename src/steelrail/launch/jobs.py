"""Which jobs were submitted for a run folder: one line each, newest last. An edge."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from steelrail.artifacts.files import results_folder, write_whole
from steelrail.artifacts.reading import parsed, reading
from steelrail.artifacts.trainer import RunFolder
from steelrail.clients.holder import Holder
from steelrail.config.schema import Run


@dataclass(frozen=True)
class JobLine:
    """One submitted job. ``holder`` is the process of a local job, none in Slurm; ``folder`` is a fabric job's own."""

    job_id: str
    submitted: float
    code_digest: str
    config_digest: str
    environment_digest: str
    holder: str | None
    folder: str = ""

    @property
    def local(self) -> bool:
        """Whether this job is a process of one host."""
        return self.holder is not None

    def process_lives(self) -> bool:
        """Whether the process of a local job lives."""
        return self.holder is not None and Holder.parse(self.holder).lives()


def read_jobs(folder: RunFolder) -> tuple[JobLine, ...]:
    """Return the jobs of a run folder, oldest first. Raises ``InputError`` when their file is damaged."""
    path = _file(folder)
    if not path.exists():
        return ()
    do = "put it back, or remove it once no job of this run lives (squeue; ps for a local one)"
    with reading("list of jobs", path, do):
        return parsed(tuple[JobLine, ...], path.read_bytes())


def living_local_jobs(run: Run) -> tuple[tuple[RunFolder, JobLine], ...]:
    """Return the local training jobs of a run whose process lives, under whatever key, each with its run folder."""
    train = results_folder(run) / "train"
    roots = sorted(path for path in train.iterdir() if path.is_dir()) if train.is_dir() else []
    lines = [(RunFolder(root), line) for root in roots for line in read_jobs(RunFolder(root))]
    return tuple((folder, line) for folder, line in lines if line.process_lives())


def add_job(folder: RunFolder, line: JobLine) -> None:
    """Keep a job that was just submitted."""
    lines = [asdict(one) for one in (*read_jobs(folder), line)]
    write_whole(_file(folder), json.dumps(lines, indent=1).encode())


def submitit_folder(folder: RunFolder) -> Path:
    """Return where submitit keeps scripts, pickles and the supervisor's logs."""
    return folder.root / "submitit"


def _file(folder: RunFolder) -> Path:
    return folder.root / "jobs.json"
