"""Which jobs are a run's, and whether Slurm's accounting tells all of them: what is still missing, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from steelrail.artifacts.jobs import NotedJob
from steelrail.artifacts.train import Attempt
from steelrail.cost.segments import Stage, segments, unbilled
from steelrail.errors import must
from steelrail.formats.sacct import SacctRow, over


def jobs_of(noted: Iterable[NotedJob], shards_key: str, known: Mapping[Stage, Iterable[str]]) -> dict[str, Stage]:
    """Return every job of a run that Slurm can know, and its stage: those that failed too.

    Noted shard jobs count if they worked for ``shards_key``: those of another key made other data. Fabric jobs count
    under every key: what was measured on other nodes or with other settings was paid for this run, whose training no
    receipt repeats. ``known``: jobs that artifacts name.
    """
    found: dict[str, Stage] = {job.job_id: job.stage for job in noted if job.stage == "fabric" or job.key == shards_key}
    found |= {job_id: stage for stage, job_ids in known.items() for job_id in job_ids}
    return {job_id: stage for job_id, stage in found.items() if job_id.isdecimal()}


def missing(
    jobs: Mapping[str, Sequence[SacctRow]], stages: Mapping[str, Stage], attempts: Sequence[Attempt]
) -> str | None:
    """Return what the accounting of a finished run still lacks, in the house grammar, or none.

    Rows come some seconds late. A bill needs every job of the run, each ended for good, and a row for every attempt.
    """
    for job_id, stage in stages.items():
        rows = tuple(jobs.get(job_id, ()))
        if not over(rows):
            state = rows[-1].state if rows else "not there"
            do = "wait, then run the cost stage again; a lost end shows in sacctmgr show runawayjobs"
            return must(f"job {job_id} of {stage}", "ended in Slurm's accounting", state, "sacct --duplicates", do)
    late = unbilled(attempts, segments(jobs, stages))
    if late:
        do = "run the cost stage again in a minute; if it stays so, see sacct --duplicates for that job"
        name = f"attempt {late[0].attempt} of job {late[0].job_id}"
        return must(name, "within a row of Slurm's accounting", "in none", "sacct --duplicates", do)
    return None
