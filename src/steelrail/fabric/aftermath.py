"""What the ranks of a try left behind when they left no report. Reads the try's folder. An edge."""

from __future__ import annotations

from steelrail.artifacts.files import read_artifact
from steelrail.clients.ends import read_ends
from steelrail.config.schema import Shape
from steelrail.fabric.facts import AbsentError, RankError
from steelrail.fabric.folder import JobFolder
from steelrail.fabric.whereabouts import Whereabouts, where_they_were

_SAID = 3


def say_of_try(folder: JobFolder, shape: Shape) -> str:
    """Return what the ranks of a try without a report said, those that know best first, and where all were."""
    faults = [read_artifact(path, RankError) for path in sorted(folder.root.glob("error-rank-*.json"))]
    # Of many ranks most only say that the others went away: an error that another try would meet again comes first.
    faults.sort(key=lambda fault: (fault.again, fault.kind != AbsentError.__name__, fault.rank))
    said = [f"rank {fault.rank} on {fault.host} ({fault.doing}): {fault.kind}: {fault.message}" for fault in faults]
    if not said:
        said = [f"rank {end.rank} on {end.host}: {end.how}" for end in read_ends(folder.log, shape.ranks_per_node)]
    found = [read_artifact(path, Whereabouts) for path in folder.root.glob("doing-rank-*.json")]
    return "; ".join([*(said[:_SAID] or ["no rank said why"]), where_they_were(found, shape.world_size)])


def may_go_better(folder: JobFolder) -> bool:
    """Return whether another try may go better than one that left no report: no rank named a cause that stays."""
    return all(read_artifact(path, RankError).again for path in folder.root.glob("error-rank-*.json"))
