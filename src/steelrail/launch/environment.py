"""What ranks find in their environment beside what the process that starts them has in its own. An edge."""

from __future__ import annotations

from collections.abc import Mapping

from steelrail.clients.ranks import MASTER_ADDR, MASTER_PORT, free_port
from steelrail.config.schema import Run


def rank_environment(run: Run, code: str, first_node: str, more: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ranks that meet on ``first_node``, this host; the run file's own win over all others.

    ``code`` is the folder of the frozen code, ``more`` what only ranks of this kind are told.
    """
    return {
        "PYTHONPATH": code,
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(run.slurm.cpus_per_rank),
        MASTER_ADDR: first_node,
        MASTER_PORT: str(free_port()),
        **more,
        **run.slurm.environment,
    }
