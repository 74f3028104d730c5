"""One save under way: a thread of its own on every rank, and what all ranks agree that it came to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from steelrail.checkpoints.manifest import Manifest
from steelrail.checkpoints.upload import Status
from steelrail.log import logger

log = logger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What a save came to: its manifest, or a fault that all ranks agree on, and every node's upload status by rank.

    ``broken``: the ranks could not speak to the end. They are out of step then, and must not save on this group again.
    """

    manifest: Manifest | None
    fault: str | None
    statuses: tuple[Status | None, ...] = ()
    broken: bool = False


class Saving:
    """One save that is written by a thread while training goes on."""

    def __init__(self, step: int, work: Callable[[], Outcome]) -> None:
        self.step, self._work, self._outcome = step, work, Outcome(None, "not finished")
        self._thread = threading.Thread(target=self._run, name=f"checkpoint-save-{step}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome = self._work()
        except Exception as error:
            log.exception("save of step %d failed", self.step)
            self._outcome = Outcome(None, f"{type(error).__name__}: {error}", broken=True)

    def wait(self, timeout_seconds: float) -> Outcome | None:
        """Return the outcome, or none when it has not come in time."""
        self._thread.join(timeout_seconds)
        return None if self._thread.is_alive() else self._outcome
