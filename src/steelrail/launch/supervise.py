"""The supervisor: runs once on the batch host and owns what happens to the ranks, attempt after attempt. An edge.

submitit starts ``main``. It replaces submitit's signal handlers first (they requeue too), then loops: claim a fence,
start the ranks, watch them, say why they ended, and restart inside the allocation, requeue, or stop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from steelrail import log
from steelrail.artifacts.files import results_folder, takes_bytes
from steelrail.artifacts.train import Ending
from steelrail.artifacts.trainer import RunFolder
from steelrail.checkpoints import fence
from steelrail.clients import clock
from steelrail.clients.slurm import Slurm
from steelrail.clients.store import Store
from steelrail.clients.store_requests import note_answered
from steelrail.config.schema import Run
from steelrail.errors import SteelrailError, TrainError
from steelrail.launch import ledger, traces
from steelrail.launch.allocation import Allocation, Ranks, SlurmAllocation
from steelrail.launch.budget import Accounts
from steelrail.launch.endings import Observed, Verdict, judge
from steelrail.launch.freeze import read_frozen
from steelrail.launch.lead import lead_seconds
from steelrail.launch.ledger import Entry
from steelrail.launch.local import LocalAllocation
from steelrail.launch.policy import ENDED_ON_PURPOSE, Action, Decision, decide
from steelrail.launch.ranks import dismiss, start
from steelrail.launch.segments import close_open
from steelrail.launch.site import Flags, Site, over_budget
from steelrail.launch.vigil import Seen, seconds_left, watch_ranks
from steelrail.launch.watch import Watch

_log = log.logger(__name__)
_END_SECONDS = 120.0


def main(root: str) -> str:
    """Supervise the job of one run folder and return its ending. Raises ``TrainError`` when the run must stop."""
    flags = Flags()
    flags.install()
    os.umask(0o077)
    log.configure()
    folder = RunFolder(Path(root))
    run, frozen = read_frozen(folder)
    allocation, slurm = _allocation(run)
    store_claim = _claimer(run, folder.root.name)
    # Patience with Slurm is for what must be known: the watch over the ranks goes on without a sum.
    accounts = Accounts(run, folder, Slurm(timeout_seconds=10.0, retry_seconds=0.0)) if slurm else None
    site = Site(folder, folder.root.name, run, frozen, allocation, flags, store_claim, accounts)
    close_open(folder, slurm, allocation.host, (allocation.job_id, allocation.segment))
    try:
        return supervise(site)
    finally:
        dismiss(site.standby)


def supervise(site: Site) -> str:
    """Run attempts until one is the last of this segment; return its ending."""
    nodes, out = site.allocation.nodes()[: site.run.shape.nodes], set[str]()
    while True:
        early = _reason_not_to_start(site)
        if early is not None:
            return early
        verdict = _attempt(site, nodes)
        if not _still_ours(site, verdict):
            _log.info("Slurm has taken this segment back; the next one says how it ended")
            return "requeued"
        out |= set(site.allocation.lost())
        decision = _decide(site, verdict, out)
        if decision.action is Action.RESTART:
            out |= {decision.exclude} if decision.exclude else set()
            nodes = replaced(nodes, site.allocation.nodes(), out)
            clock.sleep(decision.pause_seconds)
            continue
        return _leave(site, verdict, decision)


def replaced(nodes: Sequence[str], held: Sequence[str], out: Collection[str]) -> tuple[str, ...]:
    """Return ``nodes`` with a spare of ``held`` in the place of each that is out, while there are spares. Pure.

    The others keep their places: what their NVMe holds is their own ranks'.
    """
    spares = [one for one in held if one not in nodes and one not in out]
    return tuple(spares.pop(0) if one in out and spares else one for one in nodes)


def _attempt(site: Site, nodes: Sequence[str]) -> Verdict:
    """Start the ranks once, watch them to their end, and return why they ended."""
    entry = _entry(site, nodes)
    try:
        entry = _with_epoch(entry, site.claim())
    except SteelrailError as error:
        ledger.write_start(site.folder, site.allocation.host, entry)
        return Verdict(
            Ending.JOB_ERROR, f"no fence could be claimed: {error}", error.exit_code, mark=type(error).__name__
        )
    ledger.write_start(site.folder, site.allocation.host, entry)
    _log.info("attempt %d starts on %s, fence %s", entry.attempt, ",".join(entry.nodes), entry.epoch)
    ranks = start(site, entry)
    lead = lead_seconds(site.run, site.folder, entry.attempt)
    seen = Seen(Watch(clock.monotonic()), lead, ends=site.allocation.ends())
    code = watch_ranks(site, entry, ranks, seen)
    return judge(_observed(site, entry, ranks, seen, code))


def _observed(site: Site, entry: Entry, ranks: Ranks, seen: Seen, code: int) -> Observed:
    world = site.run.shape.world_size
    return Observed(
        world_size=world,
        exit_code=code,
        exits=traces.exits(site.folder, entry.attempt, world),
        faults=traces.faults(site.folder, entry.attempt, world),
        task_ends=ranks.task_ends(),
        hang=seen.hang,
        asked=seen.asked,
        terminated=site.flags.terminated or traces.all_terminated(site.folder, entry.attempt, world),
        near_limit=seconds_left(seen) < seen.lead + 90,
        lost_nodes=tuple(one for one in site.allocation.lost() if one in entry.nodes) if code else (),
        lived=traces.lived(site.folder, entry.attempt, world),
        full=not takes_bytes(site.folder.root),
        starter_killed=ranks.starter_killed(),
        bad_step=traces.rolled_back(site.folder, entry.attempt),
    )


def _still_ours(site: Site, verdict: Verdict) -> bool:
    """Whether anything is left for us to decide. After TERM Slurm needs a moment to say what it is about to do."""
    if verdict.ending is Ending.DONE:
        return True
    if not site.allocation.mine():
        return False
    if not site.flags.terminated or site.allocation.preempting():
        return True
    clock.sleep(3.0)
    return site.allocation.mine()


def _decide(site: Site, verdict: Verdict, out: Collection[str]) -> Decision:
    """Write the end of the newest attempt and return what follows. ``out``: nodes that are lost or were left out."""
    entries = ledger.read(site.folder)
    last = entries[-1]
    durable = traces.steps_of(site.folder, last.attempt).durable
    progressed = durable is not None and durable > traces.newest_durable(site.folder, last.attempt)
    this_job = [entry.past for entry in entries[:-1] if entry.job_id == site.allocation.job_id]
    past = [*this_job, ledger.past_of(verdict, progressed)]
    ends, lead = site.allocation.ends(), lead_seconds(site.run, site.folder, last.attempt)
    room = ends is None or ends - clock.now() > 2 * lead + 60
    spares = len(set(site.allocation.nodes()) - set(out)) - site.run.shape.nodes
    decision = decide(past, site.run.launch, room, spares)
    if site.flags.terminated and decision.action is Action.RESTART:
        decision = Decision(Action.REQUEUE, "the nodes are being taken away")
    ledger.write_end(site.folder, site.allocation.host, last.attempt, verdict, progressed, decision.action)
    _log.info(
        "attempt %d ended: %s (%s); next: %s (%s)",
        last.attempt,
        verdict.ending.value,
        verdict.reason,
        decision.action.value,
        decision.reason,
    )
    return decision


def _leave(site: Site, verdict: Verdict, decision: Decision) -> str:
    if decision.action is Action.FINISH:
        return verdict.ending.value
    if decision.action is Action.REQUEUE:
        dismiss(site.standby)
        if site.allocation.requeue([decision.exclude] if decision.exclude else []):
            _await_the_end(site.parent)
        raise TrainError(f"{verdict.reason}: {decision.reason}; there is no queue to go back to")
    if verdict.ending in ENDED_ON_PURPOSE:
        return verdict.ending.value
    raise TrainError(f"{verdict.reason}: {decision.reason}")


def _await_the_end(parent: int) -> None:
    """Slurm ends this process now that the job is back in the queue; leaving earlier would look like a result.

    Where it ends the batch script alone (``proctrack/linuxproc``), nobody waits for this process any more.
    """
    end = clock.monotonic() + _END_SECONDS
    while os.getppid() == parent and clock.monotonic() < end:
        clock.sleep(0.5)
    os._exit(0)


def _reason_not_to_start(site: Site) -> str | None:
    if site.flags.terminated:
        return "terminated"
    if site.folder.stop_request.exists():
        _log.info("a stop was asked for while nothing ran")
        return Ending.STOPPED.value
    if over_budget(site):
        _log.info("the budget was spent before this segment")
        return Ending.BUDGET.value
    return None


def _entry(site: Site, nodes: Sequence[str]) -> Entry:
    return Entry(
        attempt=max([entry.attempt for entry in ledger.read(site.folder)] + traces.numbers(site.folder), default=0) + 1,
        job_id=site.allocation.job_id,
        segment=site.allocation.segment,
        segment_started=site.allocation.started(),
        nodes=tuple(nodes),
        epoch=None,
        code_digest=site.frozen.code_digest,
        started=clock.now(),
    )


def _with_epoch(entry: Entry, epoch: int) -> Entry:
    return Entry(**{**entry.__dict__, "epoch": epoch})


def _allocation(run: Run) -> tuple[Allocation, Slurm | None]:
    if os.environ.get("SUBMITIT_EXECUTOR") == "local":
        return LocalAllocation.here(run), None
    slurm = Slurm()
    return SlurmAllocation.here(run, slurm), slurm


def _claimer(run: Run, key: str) -> Callable[[], int]:
    def claim() -> int:
        try:
            return fence.claim(Store.open(run.store), run.name, key)
        finally:
            note_answered(results_folder(run), "train", key)

    return claim
