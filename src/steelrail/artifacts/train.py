"""What training did: attempts, endings, the final checkpoint."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from steelrail.artifacts.files import Artifact, Provenance


class Ending(StrEnum):
    """Why an attempt stopped."""

    DONE = "done"
    PREEMPTION = "preemption"
    WALLTIME = "walltime"
    REQUEUED = "requeued"
    NODE_FAILURE = "node_failure"
    JOB_ERROR = "job_error"
    STALLED = "stalled"
    ROLLED_BACK = "rolled_back"
    STOPPED = "stopped"
    BUDGET = "budget"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


class Attempt(Artifact):
    """One start of the ranks. Times are Unix seconds; ``epoch`` is its fence; steps are none when no step was made.

    ``start`` are the seconds of its start by part, as far as it came (``launch.start``).
    """

    attempt: int
    job_id: str
    step_id: str
    segment: int
    nodes: tuple[str, ...]
    epoch: int | None
    started: float
    ended: float | None
    ending: Ending
    exit_code: int | None
    reason: str
    resumed_from: int | None
    first_step: int | None
    last_step: int | None
    code_digest: str
    start: dict[str, float] = Field(default={})


class TrainRecord(Artifact):
    """``results/<run>/train/record.json``. ``mfu`` is that of the last attempt's middle step; none on the CPU."""

    CALLED: ClassVar[str] = "training record"
    COMMAND: ClassVar[str] = "steelrail train"

    version: int = 1
    run: str
    key: str
    ending: Ending
    job_ids: tuple[str, ...]
    attempts: tuple[Attempt, ...]
    final_step: int
    final_checkpoint: str
    export: str | None
    tokens: int
    heldout_first: float | None
    heldout_last: float | None
    mfu: float | None = None
    fabric_digest: str | None
    placement: dict[str, str]
    provenance: Provenance
