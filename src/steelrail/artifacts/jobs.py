"""Every Slurm job that worked for a run, noted when it starts: a job that failed is on the bill too."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from steelrail.artifacts.files import append_line

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
    """Return the jobs noted, oldest first, each once. A torn line (a killed writer) is left out."""
    path = run_folder / FILE
    lines = path.read_text().splitlines() if path.exists() else []
    whole = (NotedJob(**json.loads(line)) for line in lines if line.endswith("}"))
    return tuple(dict.fromkeys(whole))
