"""What the run has cost until now, by Slurm's accounts, against its budget. An edge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from steelrail.artifacts.files import read_artifact, results_folder
from steelrail.artifacts.jobs import noted_jobs
from steelrail.artifacts.shards import ShardsManifest
from steelrail.artifacts.trainer import RunFolder
from steelrail.clients import clock
from steelrail.clients.slurm import Slurm
from steelrail.config.schema import Run
from steelrail.cost.accounts import jobs_of
from steelrail.cost.segments import Segment, Stage, segments
from steelrail.errors import SteelrailError, StoppedError, must
from steelrail.formats.sacct import SacctRow, job_rows
from steelrail.launch import ledger
from steelrail.launch.freeze import Frozen
from steelrail.launch.inputs import read_fabric
from steelrail.launch.jobs import read_jobs
from steelrail.launch.spend import ledger_segments, spent_micro_usd, with_late
from steelrail.log import logger
from steelrail.units import micro_usd, show_usd

_log = logger(__name__)
# slurmdbd hears of a start in several messages: for a moment a row has too few GPUs, or none. So young rows are asked
# for again soon, and then ever less often, for they burden a database that others use.
_FIRST_SECONDS, _ASK_SECONDS = 5.0, 60.0
NO_SLURM = "no Slurm accounts for a local run"


@dataclass
class Accounts:
    """Slurm's rows of every job of a run, asked for soon at first and in the end once a minute.

    ``fault``: why they do not tell all of it. While Slurm is away its last word stands, and what ran since is counted
    by the clock.
    """

    run: Run
    folder: RunFolder
    slurm: Slurm | None
    fault: str | None = None
    _stages: Mapping[str, Stage] = field(default_factory=dict)
    _rows: Mapping[str, Sequence[SacctRow]] = field(default_factory=dict)
    _asked: float = float("-inf")
    _pause: float = _FIRST_SECONDS / 2

    def paid(self, now: float, running: bool = True) -> tuple[Segment, ...]:
        """Return every segment of shards, fabric and training until ``now``.

        Of the training job alone, by its own ledger, where there are no accounts. ``running``: an attempt without an
        end in the ledger runs.
        """
        if clock.monotonic() - self._asked >= self._pause:
            self._pause = min(_ASK_SECONDS, 2 * self._pause)
            self._ask()
            self._asked = clock.monotonic()
        own = ledger_segments(self.run, ledger.read(self.folder), now if running else None)
        return with_late(segments(self._rows, self._stages, now), own)

    def _ask(self) -> None:
        before = self.fault
        try:
            self.fault = NO_SLURM
            if self.slurm is not None:
                stages = _jobs(self.run, self.folder)
                self._rows, self._stages = job_rows(self.slurm.accounts(sorted(stages, key=int))), stages
                self.fault = None
        except SteelrailError as error:
            self.fault = str(error)
        if self.fault not in (before, None) and self.run.cost.budget_usd is not None:
            what = "as last read" if self._rows else "for the training job alone, without shards and fabric"
            _log.warning("the budget counts %s: %s", what, self.fault)


def _jobs(run: Run, folder: RunFolder) -> dict[str, Stage]:
    """Every job of the run by the rules of the bill, and its stage; those of training are the ones of this key."""
    manifest = read_artifact(results_folder(run) / "shards" / "manifest.json", ShardsManifest)
    report, lines = read_fabric(run), read_jobs(folder)
    # A local job's id is that of a process.
    local = {line.job_id for line in lines if line.local}
    train = {line.job_id for line in lines} | {entry.job_id for entry in ledger.read(folder)}
    known: dict[Stage, Iterable[str]] = {"shards": manifest.job_ids, "train": sorted(train - local)}
    if report is not None:
        known["fabric"] = (report.job_id,)
    return jobs_of(noted_jobs(results_folder(run)), manifest.key, known)


def overspent(accounts: Accounts, frozen: Frozen) -> int | None:
    """Return what the run has cost in micro-dollars when that is its budget or more, else none.

    None too for a run without a budget, or without a price.
    """
    budget = accounts.run.cost.budget_usd
    if budget is None:
        return None
    spent = spent_micro_usd(accounts.run, accounts.paid(clock.now()), frozen.usd_per_gpu_hour)
    return spent if spent is not None and spent >= micro_usd(budget) else None


def check_budget(run: Run, folder: RunFolder, frozen: Frozen) -> None:
    """Raise ``StoppedError`` when the budget is spent already: the job would be given its nodes and end at once."""
    slurm = None if run.slurm.executor == "local" else Slurm()
    spent = overspent(Accounts(run, folder, slurm), frozen)
    if spent is not None:
        be = f"above the {show_usd(spent)} that it has cost"
        do = "raise it, then run train again: it resumes from the newest checkpoint"
        raise StoppedError(must(f"budget of run {run.name}", be, f"${run.cost.budget_usd}", "cost.budget_usd", do))
