"""How often the ranks of a fabric job are started, and how long each of these tries may take. Pure."""

from __future__ import annotations

from steelrail.config.schema import Run

TRIES = 2
# Of each try's share of the job's time: for its ranks to go once they were ended, and for the next to start.
END_SECONDS = 30.0
_MAX_WAIT_SECONDS = 120.0
_MAX_MEASURE_SECONDS = 30.0
# A rank starts later than its try: on a busy file system the interpreter alone takes a while.
_STACKS_SHARE = 0.75


def try_seconds(run: Run) -> float:
    """Return the seconds after which a try is ended: just under half of the job's time."""
    return max(END_SECONDS, run.slurm.fabric_minutes * 60 / TRIES - END_SECONDS)


def wait_seconds(run: Run) -> float:
    """Return how long a rank waits for others before it gives up, in time to say so before its try is ended."""
    return min(_MAX_WAIT_SECONDS, try_seconds(run) / 2)


def measure_seconds(run: Run) -> float:
    """Return the seconds for each of three: pairs, pairs in doubt once more, collectives. Half a try for all."""
    return min(_MAX_MEASURE_SECONDS, try_seconds(run) / 6)


def stacks_seconds(run: Run) -> float:
    """Return the age at which a rank writes its stacks unasked: it may be too late to ask for them."""
    return try_seconds(run) * _STACKS_SHARE
