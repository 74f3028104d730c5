"""Which jobs were submitted for a run folder: one line each, newest last. An edge."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from steelrail.artifacts.files import write_whole
from steelrail.artifacts.trainer import RunFolder
from steelrail.clients.holder import Holder


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
    """Return the jobs of a run folder, oldest first."""
    path = _file(folder)
    if not path.exists():
        return ()
    return tuple(JobLine(**fields) for fields in json.loads(path.read_text()))


def add_job(folder: RunFolder, line: JobLine) -> None:
    """Keep a job that was just submitted."""
    lines = [asdict(one) for one in (*read_jobs(folder), line)]
    write_whole(_file(folder), json.dumps(lines, indent=1).encode())


def submitit_folder(folder: RunFolder) -> Path:
    """Return where submitit keeps scripts, pickles and the supervisor's logs."""
    return folder.root / "submitit"


def _file(folder: RunFolder) -> Path:
    return folder.root / "jobs.json"
