"""Two hundred saves by one rank, for the test beside it: ``python many_saves.py`` with the store's settings as JSON.

Prints one JSON line: what the process held after the first saves and after the last.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from steelrail.checkpoints import fence
from steelrail.checkpoints.edge import Checkpoints, open_checkpoints
from steelrail.clients.ranks import RankPlace
from steelrail.clients.store import Store
from steelrail.config import schema

SAVES, WARM, FLUSH_EVERY, VALUES = 200, 20, 20, 500_000
PLACE = RankPlace(rank=0, world_size=1, local_rank=0, node_rank=0, num_nodes=1, host="host0")


def held() -> dict[str, int]:
    """Resident bytes (without files mapped), descriptors, threads and Python objects of this process."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    (resident,) = re.findall(r"RssAnon:\s+(\d+) kB", status)
    return {
        "bytes": 1024 * int(resident),
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - links that may be gone when they are looked at
        "threads": threading.active_count(),
        "objects": len(gc.get_objects()),
    }


def save_all(checkpoints: Checkpoints) -> tuple[dict[str, int], dict[str, int]]:
    state = {"weights": torch.zeros(VALUES), "moment": torch.zeros(VALUES)}
    checkpoints.restore(state)
    early: dict[str, int] = {}
    for step in range(1, SAVES + 1):
        checkpoints.before_change()
        for value in state.values():
            value.add_(1)
        checkpoints.save(state, step, step, {"losses": "1.0 " * 32}, b"state" * 1000)
        assert checkpoints.written(30)
        if step % FLUSH_EVERY == 0:
            assert checkpoints.flush(30)
        if step == WARM:
            early = held()
    return early, held()


def main(settings: dict[str, Any], nvme: Path) -> dict[str, Any]:
    dist.init_process_group("gloo", init_method=f"file://{nvme}/meet", rank=0, world_size=1)
    store = Store.open(schema.Store(**settings))
    epoch = fence.claim(store, "run", "flat")
    checkpoints = open_checkpoints(
        store,
        "run",
        "flat",
        epoch,
        nvme,
        PLACE,
        schema.Checkpoints(keep_last=2, max_behind=FLUSH_EVERY),
        lambda kind, **data: None,
    )
    began = threading.active_count()
    early, late = save_all(checkpoints)
    checkpoints.close()
    return {"early": early, "late": late, "left_threads": threading.active_count() - began + 1}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main(json.loads(sys.argv[1]), Path(sys.argv[2]))))  # noqa: T201 - its answer
