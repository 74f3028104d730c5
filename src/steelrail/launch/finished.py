"""Was this very model trained to its end already? GPU weeks are never repeated by accident. An edge."""

from __future__ import annotations

import socket

from steelrail.artifacts.train import Ending, TrainRecord
from steelrail.artifacts.trainer import RunFolder
from steelrail.config.schema import Run
from steelrail.launch import ledger
from steelrail.launch.freeze import read_frozen, run_folder
from steelrail.launch.inputs import Inputs
from steelrail.launch.jobs import read_jobs
from steelrail.launch.record import finished_record, record_path, remake_metrics, write_record
from steelrail.launch.segments import close_open
from steelrail.log import logger

_log = logger(__name__)


def finished(run: Run, inputs: Inputs) -> TrainRecord | None:
    """Return the record of this very model when it is there, or only has to be written down; else none."""
    record = finished_record(run, inputs.key)
    folder = run_folder(run, inputs.key)
    if record is not None:
        remake_metrics(run, folder)
        record_path(run).touch()
        _log.info("run %s, key %s: trained already, final step %d", run.name, inputs.key, record.final_step)
        return record
    _close_if_gone(run, folder)
    entries = ledger.read(folder)
    if not entries or entries[-1].ending is not Ending.DONE:
        return None
    frozen_run, frozen = read_frozen(folder)
    return write_record(frozen_run, frozen, inputs, folder, {})


def _close_if_gone(run: Run, folder: RunFolder) -> None:
    """A local supervisor that was killed leaves an open attempt; nobody else will ever close it."""
    begun = run.slurm.executor == "local" and folder.ledger.exists()
    if begun and not any(line.process_lives() for line in read_jobs(folder)):
        close_open(folder, None, socket.gethostname(), None, "FAILED")
