"""``steelrail status``: how a run stands, in one look. An edge."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from steelrail.artifacts.files import results_folder
from steelrail.artifacts.trainer import RunFolder
from steelrail.clients import clock
from steelrail.clients.slurm import Slurm
from steelrail.config.schema import Run
from steelrail.errors import SteelrailError
from steelrail.launch import ledger, traces
from steelrail.launch.budget import Accounts
from steelrail.launch.freeze import read_frozen
from steelrail.launch.inputs import read_inputs
from steelrail.launch.jobs import read_jobs
from steelrail.launch.ledger import Entry
from steelrail.launch.lock import holder
from steelrail.launch.logs import newest_folder
from steelrail.launch.queued import job_now
from steelrail.launch.spend import spent_micro_usd
from steelrail.launch.stages import finished_stages, first_open
from steelrail.train.plan import mfu
from steelrail.units import show_seconds, show_usd

_WINDOW_STEPS = 20


@dataclass(frozen=True)
class RunStatus:
    """How a run stands. Seconds are floats, money is integer micro-dollars; none where nothing is known."""

    run: str
    stage: str
    key: str | None
    job_id: str | None
    state: str
    reason: str
    driver: str | None
    attempt: int | None
    nodes: tuple[str, ...]
    last_ending: str | None
    step: int | None
    steps: int
    tokens_per_s: float | None
    mfu: float | None
    eta_seconds: float | None
    spent_micro_usd: int | None
    spent_gap: str | None
    durable_step: int | None
    finished: dict[str, str]

    @property
    def open(self) -> bool:
        """Whether the run is not billed yet."""
        return "cost" not in self.finished

    def json(self) -> str:
        """Return the status for machines."""
        return json.dumps(asdict(self), indent=1)

    def text(self) -> str:
        """Return the status for a reader."""
        return "\n".join(f"{name:<12}{value}" for name, value in self._lines() if value)

    def _lines(self) -> list[tuple[str, str]]:
        at = f"{self.step} of {self.steps}" if self.step is not None else ""
        speed = f"{self.tokens_per_s:,.0f} tokens/s" if self.tokens_per_s else ""
        share = f"MFU {self.mfu:.1%}" if self.mfu is not None else ""
        left = f"{show_seconds(self.eta_seconds)} left" if self.eta_seconds is not None else ""
        nodes = f" on {', '.join(self.nodes)}" if self.nodes else ""
        return [
            ("run", f"{self.run}, stage {self.stage}" + (f", key {self.key}" if self.key else "")),
            (
                "job",
                f"{self.job_id}: {self.state}" + (f" ({self.reason})" if self.reason else "")
                if self.job_id
                else self.state,
            ),
            ("attempt", f"{self.attempt}{nodes}" if self.attempt else ""),
            ("last ending", self.last_ending or ""),
            ("step", ", ".join(filter(None, (at, speed, share, left)))),
            ("checkpoint", f"step {self.durable_step}" if self.durable_step is not None else ""),
            # Once the bill is there, that counts.
            ("spent", self._spent() if self.open else ""),
            ("driver", self.driver or ""),
            *self.finished.items(),
        ]

    def _spent(self) -> str:
        if self.spent_micro_usd is None:
            return ""
        gap = f" by the training job alone, as its ledger tells ({self.spent_gap})" if self.spent_gap else ""
        return f"{show_usd(self.spent_micro_usd)}{gap}"


def status(run: Run) -> RunStatus:
    """Return how a run stands now."""
    folder = _folder(run)
    entries = ledger.read(folder) if folder else ()
    line, state, reason = job_now(run, folder)
    last = entries[-1] if entries else None
    step, speed = _speed(run, folder, last)
    finished = finished_stages(run, folder.root.name if folder else None)
    live = state not in ("none", "UNKNOWN") and last is not None and last.ended is None
    spent, gap = _spent(run, folder, live)
    return RunStatus(
        run=run.name,
        stage=first_open(finished),
        key=folder.root.name if folder else None,
        job_id=line.job_id if line else None,
        state=state,
        reason=reason,
        driver=holder(results_folder(run)) if results_folder(run).is_dir() else None,
        attempt=last.attempt if last else None,
        nodes=last.nodes if last and live else (),
        last_ending=_last_ending(entries),
        step=step,
        steps=run.train.steps,
        tokens_per_s=speed if live else None,
        mfu=mfu(run, speed) if live and speed else None,
        eta_seconds=_eta(run, step, speed) if live else None,
        spent_micro_usd=spent,
        spent_gap=gap,
        durable_step=_durable(folder, entries),
        finished=finished,
    )


def _folder(run: Run) -> RunFolder | None:
    """The folder of this run file's key where it can be told, else the one in which something happened last."""
    try:
        folder = RunFolder(results_folder(run) / "train" / read_inputs(run).key)
    except SteelrailError:
        return newest_folder(run)
    return folder if folder.ledger.exists() or read_jobs(folder) else newest_folder(run)


def _speed(run: Run, folder: RunFolder | None, last: Entry | None) -> tuple[int | None, float | None]:
    """The newest step, and tokens per second over the last steps of the newest attempt."""
    if folder is None or last is None:
        return None, None
    events = traces.newest_steps(folder, last.attempt, _WINDOW_STEPS)
    if not events:
        resumed = traces.steps_of(folder, last.attempt).resumed_from
        return resumed if resumed is not None else traces.newest_step(folder, last.attempt), None
    span = events[-1].time - events[0].data["start"]
    tokens = sum(int(one.data["tokens"]) for one in events)
    return events[-1].data["step"], tokens / span if span > 0 else None


def _eta(run: Run, step: int | None, speed: float | None) -> float | None:
    if step is None or not speed:
        return None
    return (run.train.steps - step) * run.train.global_batch_sequences * run.train.sequence_tokens / speed


def _last_ending(entries: tuple[Entry, ...]) -> str | None:
    ended = [entry for entry in entries if entry.ending is not None]
    return f"attempt {ended[-1].attempt}: {ended[-1].ending}: {ended[-1].reason}" if ended else None


def _spent(run: Run, folder: RunFolder | None, live: bool) -> tuple[int | None, str | None]:
    """Micro-dollars so far, and why they are those of the training job alone (none: they are not)."""
    if folder is None:
        return None, None
    try:
        frozen_run, frozen = read_frozen(folder)
    except SteelrailError:
        return None, None
    slurm = None if run.slurm.executor == "local" else Slurm(retry_seconds=5.0)
    accounts = Accounts(frozen_run, folder, slurm)
    paid = accounts.paid(clock.now(), live)
    return spent_micro_usd(frozen_run, paid, frozen.usd_per_gpu_hour), accounts.fault


def _durable(folder: RunFolder | None, entries: tuple[Entry, ...]) -> int | None:
    if folder is None or not entries:
        return None
    newest = traces.newest_durable(folder, entries[-1].attempt + 1)
    return newest if newest >= 0 else None
