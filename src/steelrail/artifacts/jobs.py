"""Every Slurm job that worked for a run, noted when it starts: a job that failed is on the bill too."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from steelrail.artifacts.files import append_line
from steelrail.artifacts.reading import read_lines

FILE = "jobs.jsonl"


@dataclass(frozen=True)
class NotedJob:
    """One job of a stage, and the key it worked for."""

    stage: Literal["shards", "fabric"]
    key: str
    job_id: str


def note_job(run_folder: Path, job: NotedJob) -> None:
    """Append one job to ``results/<run>/jobs.jsonl``. Raises ``FullError``."""
    line = json.dumps(asdict(job), separators=(",", ":"))
    append_line(run_folder / FILE, line.encode())


def noted_jobs(run_folder: Path) -> tuple[NotedJob, ...]:
    """Return the jobs noted, oldest first, each once. A torn line (a killed writer) is left out.

    Raises ``InputError`` at a line that no writer wrote: a job may be missing from the bill.
    """
    do = "put the line back as it was written, or take it out if its job is in none of Slurm's accounts"
    return tuple(dict.fromkeys(read_lines(run_folder / FILE, NotedJob, "job noted", do)))
