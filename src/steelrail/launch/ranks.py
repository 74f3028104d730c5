"""Starting the ranks of an attempt, and keeping those of the next one loaded meanwhile. An edge.

Loading torch takes each node seconds in which all its GPUs wait. While one attempt trains, the process from which the
next one's ranks are forked loads it on every node, and waits for the word. It is used if the next attempt is the one it
was meant for, on the same nodes; else it is ended, and the ranks are started as if it had never been.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelrail.clients.ranks import EPOCH
from steelrail.config.schema import Run
from steelrail.errors import SteelrailError
from steelrail.launch.allocation import Ranks
from steelrail.launch.environment import rank_environment
from steelrail.launch.ledger import Entry
from steelrail.log import logger

if TYPE_CHECKING:
    from steelrail.launch.site import Site

_log = logger(__name__)
RANK_MODULE = "steelrail.launch.rank"


@dataclass
class Standby:
    """The ranks that wait, for which attempt and on which nodes; none while none do."""

    ranks: Ranks | None = None
    attempt: int = 0
    nodes: tuple[str, ...] = ()


def start(site: Site, entry: Entry) -> Ranks:
    """Let the ranks of an attempt begin: those that wait for it, or new ones."""
    waiting = _take(site.standby, entry)
    environment = _environment(site, entry, {EPOCH: str(entry.epoch)})
    if waiting is not None:
        try:
            waiting.go(environment)
        except OSError as error:
            _log.warning("attempt %d starts anew, since what waited for it is gone: %s", entry.attempt, error)
        else:
            _log.info("attempt %d had been loaded beforehand", entry.attempt)
            return waiting
    return _start(site, entry.attempt, entry.nodes, environment, wait=False)


def stand_by(site: Site, entry: Entry) -> None:
    """Have the attempt after this one loaded on the same nodes, where the run wants that and it was not done yet."""
    standby, attempt = site.standby, entry.attempt + 1
    if standby.attempt == attempt or not wanted(site.run):
        return
    standby.attempt, standby.nodes = attempt, entry.nodes
    # Its fence is claimed only when it begins.
    standby.ranks = _start(site, attempt, entry.nodes, _environment(site, entry, {}), wait=True)


def dismiss(standby: Standby) -> None:
    """End what waits; nothing where nothing does."""
    ranks, standby.ranks = standby.ranks, None
    if ranks is None or ranks.poll() is not None:
        return
    try:
        ranks.dismiss()
    except (SteelrailError, OSError) as error:
        # Slurm ends it with the job.
        _log.warning("what waited for the next attempt could not be ended: %s", error)


def wanted(run: Run) -> bool:
    """Return whether a run keeps its next attempt loaded: as it says, else where nodes have GPUs to keep waiting."""
    return run.launch.standby if run.launch.standby is not None else run.shape.device == "cuda"


def attempt_name(attempt: int) -> str:
    """Return the name of the job step of an attempt."""
    return f"attempt-{attempt:04d}"


def _take(standby: Standby, entry: Entry) -> Ranks | None:
    ranks = standby.ranks
    meant = (standby.attempt, standby.nodes) == (entry.attempt, entry.nodes)
    if ranks is None or not meant or ranks.poll() is not None:
        dismiss(standby)
        return None
    standby.ranks = None
    return ranks


def _start(site: Site, attempt: int, nodes: tuple[str, ...], environment: Mapping[str, str], wait: bool) -> Ranks:
    module = [RANK_MODULE, str(site.folder.root), str(attempt)]
    return site.allocation.start(module, nodes, environment, attempt_name(attempt), site.folder.log(attempt), wait)


def _environment(site: Site, entry: Entry, told: Mapping[str, str]) -> dict[str, str]:
    # Read by cuBLAS at its first use, which the checks before training already make.
    pinned = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if site.run.train.deterministic else {}
    return rank_environment(site.run, site.frozen.code, entry.nodes[0], {**told, **pinned})
