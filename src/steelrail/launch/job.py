"""The job that ``submit`` returns: a ``submitit.Job`` that stays right over requeues, told by our record. An edge."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import submitit

from steelrail.artifacts.train import TrainRecord
from steelrail.artifacts.trainer import RunFolder
from steelrail.clients import clock
from steelrail.clients.holder import Holder
from steelrail.clients.slurm import Slurm
from steelrail.config.schema import Run
from steelrail.errors import SteelrailError
from steelrail.launch import attend
from steelrail.launch.inputs import Inputs
from steelrail.launch.jobs import JobLine, submitit_folder


class SteelrailJob(submitit.Job[TrainRecord]):
    """A training job. ``result()`` is its record, or raises what ended the run; both are the same for every requeue.

    submitit's own judgement (a result pickle, a state of Slurm's that is final for it) is not used: a job that Slurm
    has put back into the queue is not done.
    """

    def __init__(
        self, run: Run, inputs: Inputs, folder: RunFolder, line: JobLine, record: TrainRecord | None = None
    ) -> None:
        """``record`` is there when the model was trained already: the job is then its last one, and done."""
        super().__init__(submitit_folder(folder), line.job_id)
        self.run, self.inputs, self.run_folder, self.line = run, inputs, folder, line
        self._record, self._gone = record, record is not None

    @property
    def state(self) -> str:
        """Slurm's word for the job now (``RUNNING``, ``PENDING``, ``COMPLETED``), or ``UNKNOWN``."""
        return "COMPLETED" if self._record is not None else self._look().word

    def done(self, force_check: bool = False) -> bool:
        """Return whether the job is gone and will not run again. What is not known is never done."""
        if not self._gone:
            sight = self._look()
            attend.care(self.run, self._slurm(), sight)
            self._gone = sight.gone
        return self._gone

    def wait(self) -> None:
        """Wait until the job is gone."""
        while not self.done():
            clock.sleep(self.run.launch.poll_seconds)

    def result(self) -> TrainRecord:
        """Wait and return the record. Raises ``TrainError``, ``StoppedError`` or what else ended the run."""
        self.wait()
        if self._record is None:
            self._record = attend.conclude(self.run, self.inputs, self.run_folder, self._slurm(), self._look())
        return self._record

    def results(self) -> list[TrainRecord]:
        """Return the one result, as a list."""
        return [self.result()]

    def exception(self) -> Any:
        """Wait and return the error that ended the run, or none."""
        try:
            self.result()
        except SteelrailError as error:
            return error
        return None

    def cancel(self, check: bool = True) -> None:
        """Cancel the job for good. Without ``check`` errors are passed over."""
        try:
            if self.line.holder is not None:
                _end_local(Holder.parse(self.line.holder))
            else:
                self._slurm_door().cancel(self.job_id)
        except (SteelrailError, OSError):
            if check:
                raise

    def attempt_logs(self) -> list[Path]:
        """Return the ranks' logs, one file an attempt, oldest first; the supervisor's is ``paths.stdout``."""
        return sorted((self.run_folder.root / "logs").glob("attempt-*.log"))

    def get_info(self, mode: str = "force") -> dict[str, str]:
        """Return what is known of the job as text."""
        sight = self._look()
        return {"jobState": sight.word, "State": sight.word, "reason": sight.reason}

    def _register_in_watcher(self) -> None:
        """submitit's watcher asks Slurm in its own way; we ask in ours."""

    def _look(self) -> attend.Sight:
        return attend.look(self.line, self._slurm())

    def _slurm(self) -> Slurm | None:
        return None if self.line.local else self._slurm_door()

    def _slurm_door(self) -> Slurm:
        return Slurm()


def _end_local(holder: Holder) -> None:
    # The same number on another host is somebody else's process.
    if holder.host == socket.gethostname() and holder.lives():
        os.kill(holder.pid, signal.SIGTERM)
