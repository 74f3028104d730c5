"""Corpus and shards from Python: what Snakemake's first three rules do, for those who use Steelrail as a library."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import submitit

from steelrail.artifacts.files import results_folder
from steelrail.artifacts.shards import ShardsManifest
from steelrail.clients.disk import private_folder
from steelrail.clients.slurm import clean_environment
from steelrail.config.schema import Run
from steelrail.corpus.edge import list_corpus, run_stage
from steelrail.errors import InputError, must
from steelrail.launch.lock import only_driver
from steelrail.launch.request import EXPORTED
from steelrail.log import logger
from steelrail.shards.edge import gather, run_part

_log = logger(__name__)


def prepare(run: Run) -> ShardsManifest:
    """Identify the corpus, tokenise it on the CPU partition (local executor: on this host), return the manifest.

    What the store already holds is not made again. Raises ``InputError``, ``ClusterError`` or ``StoreError``.
    """
    folder = results_folder(run)
    private_folder(folder)
    with only_driver(folder.absolute(), run.name):
        return _prepare(run, folder)


def _prepare(run: Run, folder: Path) -> ShardsManifest:
    run_stage(run, list_corpus(run))
    executor = _executor(run, private_folder(folder / "shards" / "submitit"))
    with clean_environment(), executor.batch():
        jobs = [executor.submit(run_part, run, part) for part in range(run.shards.parts)]
    _log.info("run %s: %d shard jobs submitted", run.name, len(jobs))
    for job in jobs:
        _require(job)
    return gather(run)


def _executor(run: Run, folder: Path) -> submitit.Executor:
    shards = run.shards
    executor: submitit.Executor
    if run.slurm.executor == "local":
        executor = submitit.LocalExecutor(folder)
        executor.update_parameters(timeout_min=shards.minutes)
        return executor
    executor = submitit.SlurmExecutor(folder)
    executor.update_parameters(
        job_name=f"steelrail-{run.name}-shards",
        partition=shards.partition,
        time=shards.minutes,
        cpus_per_task=shards.cpus,
        mem=f"{shards.memory_mb}MB",
        use_srun=False,
        setup=["umask 077", *run.slurm.setup],
        # Never the whole environment: a key or token in it would travel into Slurm's own files.
        additional_parameters={"export": ",".join(name for name in EXPORTED if name in os.environ)},
        **({"account": run.slurm.account} if run.slurm.account else {}),
    )
    return executor


def _require(job: submitit.Job[Any]) -> None:
    fault = job.exception()
    if fault is None:
        return
    said = str(fault).strip().splitlines()[-1][:300]
    where, do = str(job.paths.stderr), "read that log, mend the cause, call prepare() again"
    raise InputError(must(f"shard job {job.job_id}", "done", f"failed ({said})", where, do)) from fault
