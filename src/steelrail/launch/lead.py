"""How long before a known end the ranks are told to save: as configured, or as long as saves took to reach the store.

Reads events only.
"""

from __future__ import annotations

import statistics

from steelrail.artifacts.trainer import RunFolder
from steelrail.config.schema import Run
from steelrail.errors import ConfigError, must
from steelrail.launch import ledger, traces

# What is left of the lead when the last save must be over: the supervisor ends the ranks and answers in it. Of a short
# lead it is half.
MARGIN_SECONDS = 45.0
# A save that everybody waits for may take longer than those before it.
_SLACK = 1.25


def _way_to_the_store(folder: RunFolder, before_attempt: int) -> float:
    """Return the seconds to allow for a save, by the newest attempt with any among those before one; 0 without any.

    The median counts: a store that was away for a while made single saves long.
    """
    for attempt in range(before_attempt - 1, 0, -1):
        took = traces.upload_seconds(folder, attempt)
        if took:
            return _SLACK * statistics.median(took)
    return 0.0


def needed_seconds(folder: RunFolder, before_attempt: int) -> float:
    """Return the lead that saves needed so far; 0 where none was measured."""
    way = _way_to_the_store(folder, before_attempt)
    return way + min(way, MARGIN_SECONDS)


def lead_seconds(run: Run, folder: RunFolder, attempt: int) -> float:
    """Return how long before a known end the ranks of an attempt are told: never less than configured."""
    return max(run.slurm.lead_seconds, needed_seconds(folder, attempt + 1))


def flush_seconds(run: Run, folder: RunFolder, attempt: int) -> float:
    """Return how long an attempt that was told to end waits for the store: what is on NVMe the next one uploads too."""
    return max(run.slurm.lead_seconds / 2, _way_to_the_store(folder, attempt + 1))


def check_lead(run: Run, folder: RunFolder) -> None:
    """Raise ``ConfigError`` when the configured lead is known to be too short: Slurm's own signal comes that late."""
    newest = max((entry.attempt for entry in ledger.read(folder)), default=0)
    needed = needed_seconds(folder, newest + 1)
    if needed > run.slurm.lead_seconds and run.slurm.executor == "slurm":
        wanted = f"at least {needed:.0f} (a save's way to the store, a quarter more, and time to answer)"
        do = "raise it: the model and its checkpoints stay"
        raise ConfigError(must("slurm.lead_seconds", wanted, run.slurm.lead_seconds, f"{folder.root}", do))
