"""Watching the ranks of one attempt: heartbeats, clock, money and wishes. An edge.

Ranks are asked to save and end (a stop, the budget, the time limit), or ended when they hang or answer too late.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from steelrail.clients import clock
from steelrail.errors import SteelrailError
from steelrail.launch import ledger, traces
from steelrail.launch.allocation import Ranks
from steelrail.launch.endings import Hang
from steelrail.launch.lead import lead_seconds
from steelrail.launch.ledger import Entry
from steelrail.launch.ranks import stand_by
from steelrail.launch.site import Site, over_budget
from steelrail.launch.watch import Watch, find_hang, observe
from steelrail.log import logger

_log = logger(__name__)

_POLL_SECONDS = 0.2
_LOOK_SECONDS = 1.0
_SLURM_LOOK_SECONDS = 20.0
_ASK_AGAIN_SECONDS = 10.0
# For ranks to go by themselves once one of them is gone; those of its node have less (``launch.node``).
_FOLLOW_SECONDS = 5.0
# For ranks to write their stacks.
_STACKS_SECONDS = 2.0
# Between our last word and Slurm's: enough to requeue before the limit kills us.
_MARGIN_SECONDS = 20.0
Asked = Literal["stop", "budget", "walltime"]


@dataclass
class Seen:
    """What was noticed while the ranks ran. ``lead``: seconds before a known end at which they are told to save."""

    watch: Watch
    lead: float
    hang: Hang | None = None
    asked: Asked | None = None
    asked_at: float = 0.0
    sent_at: float = 0.0
    ends: float | None = None
    first_end: float | None = None
    slurm_looked: float = field(default=float("-inf"))


def watch_ranks(site: Site, entry: Entry, ranks: Ranks, seen: Seen) -> int:
    """Return the exit code of the ranks once all are gone; ask them to save, or kill them, when there is reason to."""
    noted, looked = False, float("-inf")
    while (code := ranks.poll()) is None:
        if clock.monotonic() - looked >= _LOOK_SECONDS:
            looked = clock.monotonic()
            try:
                noted = noted or _note_step(site, entry, ranks)
                _look(site, entry, ranks, seen)
                # Not while ranks still load themselves, nor when they are to end.
                if seen.watch.step_seconds and seen.asked is None:
                    stand_by(site, entry)
            except (SteelrailError, OSError, ValueError) as error:
                # Slurm or the shared file system is away for a moment: no reason to give the nodes up.
                _log.warning("the watch goes on after: %s", error)
        clock.sleep(_POLL_SECONDS)
    return code


def _note_step(site: Site, entry: Entry, ranks: Ranks) -> bool:
    step_id = ranks.step_id()
    if step_id is not None:
        ledger.write_step_id(site.folder, site.allocation.host, entry.attempt, step_id)
    return step_id is not None


def _look(site: Site, entry: Entry, ranks: Ranks, seen: Seen) -> None:
    """One look at heartbeats, clock, money and wishes."""
    _look_at_slurm(site, entry, seen, clock.monotonic())
    # After Slurm, which may have kept us waiting: what is read now must not be dated back.
    now = clock.monotonic()
    beats = traces.heartbeats(site.folder, entry.attempt, site.run.shape.world_size)
    seen.watch = observe(seen.watch, beats, now)
    limits = site.run.launch
    if seen.hang is None:
        seen.hang = find_hang(seen.watch, site.run.shape.world_size, now, limits.hang_seconds, limits.startup_seconds)
        if seen.hang is not None:
            _log.error("rank %d on %s hangs (%.0f s, %s): ending the attempt", *_words(seen.hang))
            _take_stacks(ranks)
            ranks.kill()
            return
    if site.flags.terminated and site.run.slurm.executor == "local" and seen.asked is None:
        _ask(ranks, seen, "stop", now)
    _ask_if_due(site, ranks, seen, now)
    _end_if_late(site, ranks, seen, now)
    _end_if_alone(ranks, seen, now)


def _take_stacks(ranks: Ranks) -> None:
    """Have every rank write the stacks of its threads into the attempt's log; it needs no interpreter for that."""
    try:
        ranks.signal("QUIT")
        clock.sleep(_STACKS_SECONDS)
    except SteelrailError as error:
        _log.warning("the ranks could not be asked for their stacks: %s", error)


def _look_at_slurm(site: Site, entry: Entry, seen: Seen, now: float) -> None:
    if now - seen.slurm_looked < _SLURM_LOOK_SECONDS or site.flags.terminated:
        return
    seen.lead = lead_seconds(site.run, site.folder, entry.attempt)
    try:
        seen.ends = site.allocation.ends() or seen.ends
    finally:
        # Counted from the answer: a Slurm that is away must not keep us from the ranks.
        seen.slurm_looked = clock.monotonic()


def _ask_if_due(site: Site, ranks: Ranks, seen: Seen, now: float) -> None:
    if site.flags.terminated:
        return
    if seen.asked is not None:
        _ask_again(ranks, seen, now)
        return
    if site.folder.stop_request.exists():
        _ask(ranks, seen, "stop", now)
    elif over_budget(site):
        _ask(ranks, seen, "budget", now)
    elif site.flags.signalled or seconds_left(seen) < seen.lead - 5:
        # Slurm's own signal comes up to 60 s before the lead; this one is for when it did not.
        _ask(ranks, seen, "walltime", now)


def _ask(ranks: Ranks, seen: Seen, reason: Asked, now: float) -> None:
    _log.info("asking the ranks to save and end: %s", reason)
    seen.asked, seen.asked_at, seen.sent_at = reason, now, now
    ranks.signal("USR2")


def _ask_again(ranks: Ranks, seen: Seen, now: float) -> None:
    """The first signal may have got lost (no step yet, Slurm away); ranks keep the first that they hear."""
    if now - seen.sent_at > _ASK_AGAIN_SECONDS:
        seen.sent_at = now
        ranks.signal("USR2")


def _end_if_late(site: Site, ranks: Ranks, seen: Seen, now: float) -> None:
    """End ranks that were asked to save and did not in time, so that we can still answer before Slurm ends us."""
    overdue = seen.asked is not None and now - seen.asked_at > max(seen.lead, site.run.launch.hang_seconds)
    if overdue or seconds_left(seen) < min(_MARGIN_SECONDS, seen.lead / 2):
        _log.warning("the ranks did not end in time: ending them")
        seen.asked = seen.asked or "walltime"
        ranks.kill()


def _end_if_alone(ranks: Ranks, seen: Seen, now: float) -> None:
    """End ranks that outlive one that is gone: srun waits for them as long as Slurm's KillWait, 30 s by default."""
    if seen.first_end is None and ranks.task_ends():
        seen.first_end = now
    if seen.first_end is not None and now - seen.first_end > _FOLLOW_SECONDS:
        _log.warning("the ranks did not follow one that is gone: ending them")
        ranks.kill()


def seconds_left(seen: Seen) -> float:
    return float("inf") if seen.ends is None else seen.ends - clock.now()


def _words(hang: Hang) -> tuple[int, str, float, str]:
    return hang.rank, hang.host, hang.seconds, hang.doing
