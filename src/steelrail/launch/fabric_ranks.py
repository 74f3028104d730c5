"""The fabric job on its batch host: the ranks are started, ended in time, and started once more. An edge."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from steelrail import log
from steelrail.artifacts.files import write_whole
from steelrail.artifacts.trainer import EXIT_DONE, EXIT_ERROR
from steelrail.clients import clock
from steelrail.clients.disk import private_folder
from steelrail.clients.slurm import Slurm
from steelrail.config.schema import Run
from steelrail.errors import ClusterError
from steelrail.fabric.aftermath import may_go_better, say_of_try
from steelrail.fabric.folder import JobFolder
from steelrail.fabric.tries import END_SECONDS, TRIES, try_seconds
from steelrail.launch.allocation import Allocation, Ranks, SlurmAllocation
from steelrail.launch.environment import rank_environment
from steelrail.launch.local import LocalAllocation

_log = log.logger(__name__)
# For ranks to write their stacks once they were asked.
_STACKS_SECONDS = 3.0
# For ranks to go once all is said.
_LEAVE_SECONDS = 20.0


def run_ranks(root: str) -> int:
    """Start the ranks and return 0 when they left their report; those that hang or lose each other are started again.

    Called by submitit. Each of the two tries has just under half of the job's time, and a folder of its own that stays:
    a fabric job never hangs for good, and what hung can be read afterwards.
    """
    os.umask(0o077)
    log.configure()
    job = JobFolder(Path(root))
    run = Run.model_validate_json(job.run_file.read_bytes())
    local = os.environ.get("SUBMITIT_EXECUTOR") == "local"
    allocation: Allocation = LocalAllocation.here(run) if local else SlurmAllocation.here(run, Slurm())
    for _ in range(TRIES):
        folder = _new_try(job)
        _await(_start(run, folder, allocation), try_seconds(run), folder)
        if folder.report.exists():
            return EXIT_DONE
        _log.warning("%s left no report: %s", folder.root.name, say_of_try(folder, run.shape))
        if not may_go_better(folder):
            break
    return EXIT_ERROR


def _new_try(job: JobFolder) -> JobFolder:
    folder = job.next_try()
    private_folder(folder.root)
    write_whole(folder.run_file, job.run_file.read_bytes())
    return folder


def _start(run: Run, folder: JobFolder, allocation: Allocation) -> Ranks:
    nodes = allocation.nodes()
    env = rank_environment(run, os.environ.get("PYTHONPATH", ""), nodes[0], {})
    # A step of its own name: Slurm may still know that of the try before.
    name = f"fabric-{folder.root.name}"
    return allocation.start(["steelrail.fabric.rank", str(folder.root)], nodes, env, name, folder.log)


def _await(ranks: Ranks, seconds: float, folder: JobFolder) -> None:
    """Wait for the ranks to go. After ``seconds``, or soon after their report, they write stacks and are ended."""
    _until(lambda: ranks.poll() is not None or folder.report.exists(), seconds)
    if _until(lambda: ranks.poll() is not None, _LEAVE_SECONDS if folder.report.exists() else 0.0):
        return
    _log.warning("%s is not over in time: its ranks write their stacks there and are ended", folder.root.name)
    try:
        ranks.signal("QUIT")
    except ClusterError as error:
        _log.warning("the ranks could not be asked for their stacks (those they wrote before count): %s", error)
    if not _until(lambda: ranks.poll() is not None, _STACKS_SECONDS):
        ranks.kill()
        _until(lambda: ranks.poll() is not None, END_SECONDS)


def _until(sign: Callable[[], bool], seconds: float) -> bool:
    """Wait at most ``seconds`` for a sign, and return whether it came."""
    give_up = clock.monotonic() + seconds
    while not sign():
        if clock.monotonic() >= give_up:
            return False
        clock.sleep(0.2)
    return True
