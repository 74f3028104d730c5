"""Every Slurm job that worked for a run, noted when it starts: a job that failed is on the bill too."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

FILE = "jobs.jsonl"


@dataclass(frozen=True)
class NotedJob:
    """One job of a stage, and the key it worked for."""

    stage: Literal["shards", "fabric"]
    key: str
    job_id: str


def note_job(run_folder: Path, job: NotedJob) -> None:
    """Append one job to ``results/<run>/jobs.jsonl``. One small write, so that jobs on many nodes may do it at once."""
    run_folder.mkdir(parents=True, exist_ok=True)
    line = json.dumps(asdict(job), separators=(",", ":")) + "\n"
    descriptor = os.open(run_folder / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def noted_jobs(run_folder: Path) -> tuple[NotedJob, ...]:
    """Return the jobs noted, oldest first, each once. A torn line (a killed writer) is left out."""
    path = run_folder / FILE
    lines = path.read_text().splitlines() if path.exists() else []
    whole = (NotedJob(**json.loads(line)) for line in lines if line.endswith("}"))
    return tuple(dict.fromkeys(whole))
