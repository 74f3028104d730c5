"""Is this node fit, before anything costs time: environment, code, NVMe, store. An edge."""

from __future__ import annotations

import os
from pathlib import Path

from steelrail.artifacts.trainer import RunFolder
from steelrail.clients.disk import require_writable_folder
from steelrail.clients.ranks import RankPlace
from steelrail.clients.store import Store
from steelrail.config.schema import Run
from steelrail.errors import NodeError, must
from steelrail.launch.freeze import Frozen, package_folder

# A probe must fail within half a minute; the run's own patience with the store is for later.
_PROBE_RETRY_SECONDS = 15.0


def probe_node(run: Run, frozen: Frozen, folder: RunFolder, place: RankPlace) -> None:
    """Raise ``NodeError`` or ``StoreError`` unless this node can take part."""
    require_environment(run, frozen)
    if not folder.frozen_run.exists():
        do = "put results on a file system that head and nodes share"
        raise NodeError(must("run folder", "visible on every node", "missing", f"{place.host}: {folder.root}", do))
    if place.local_rank == 0:
        require_writable_folder(Path(run.node.nvme), run.node.min_free_gb)
        probe_store(run)


def probe_store(run: Run) -> None:
    """Raise ``StoreError`` unless the store is there and keeps its word now."""
    probing = run.store.model_copy(update={"retry_seconds": min(run.store.retry_seconds, _PROBE_RETRY_SECONDS)})
    Store.open(probing).probe()


def require_environment(run: Run, frozen: Frozen) -> None:
    """Raise ``NodeError`` unless the run file's variables and the frozen code have reached this process."""
    for name, value in run.slurm.environment.items():
        if os.environ.get(name) != value:
            do = "see what the site's prolog or slurm.setup does to it"
            raise NodeError(must(f"environment variable {name}", repr(value), repr(os.environ.get(name)), "rank", do))
    used = package_folder().parent
    if used.resolve() != Path(frozen.code).resolve():
        do = "see that nothing in slurm.setup changes PYTHONPATH"
        raise NodeError(must("code", f"the frozen one, {frozen.code}", used, "PYTHONPATH", do))
