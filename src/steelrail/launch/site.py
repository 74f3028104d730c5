"""What the supervisor works with: the job's own facts, and what signals told it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType

from steelrail.artifacts.trainer import RunFolder
from steelrail.config.schema import Run
from steelrail.launch.allocation import Allocation
from steelrail.launch.budget import Accounts, overspent
from steelrail.launch.freeze import Frozen
from steelrail.launch.ranks import Standby
from steelrail.log import logger
from steelrail.units import show_usd

_log = logger(__name__)


@dataclass
class Flags:
    """What signals told this process."""

    terminated: bool = False
    signalled: bool = False

    def install(self) -> None:
        """Take the signals that submitit's handlers would act on."""
        signal.signal(signal.SIGTERM, self._term)
        signal.signal(signal.SIGUSR2, self._user)
        signal.signal(signal.SIGCONT, signal.SIG_DFL)

    def _term(self, number: int, frame: FrameType | None) -> None:
        self.terminated = True

    def _user(self, number: int, frame: FrameType | None) -> None:
        self.signalled = True


@dataclass(frozen=True)
class Site:
    """Everything the supervisor works with. ``accounts`` is none where no Slurm accounts for the run.

    ``parent`` is the process that started this one.
    """

    folder: RunFolder
    key: str
    run: Run
    frozen: Frozen
    allocation: Allocation
    flags: Flags
    claim: Callable[[], int]
    accounts: Accounts | None = None
    standby: Standby = field(default_factory=Standby)
    parent: int = field(default_factory=os.getppid)


def over_budget(site: Site) -> bool:
    """Return whether the run's budget is spent."""
    spent = overspent(site.accounts or Accounts(site.run, site.folder, None), site.frozen)
    if spent is not None:
        _log.info("%s are spent of a budget of $%s", show_usd(spent), site.run.cost.budget_usd)
    return spent is not None
