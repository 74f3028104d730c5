"""The collective in which this rank's GPU stands, by torch's flight recorder.

Gloo has none: there the wait is in the stack.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from steelrail.formats.flight import oldest_pending

# Read when the process group is made: so many collectives are remembered. Some 1 KB each, on the host.
VARIABLES = {"TORCH_FR_BUFFER_SIZE": "2000"}


def pending() -> str:
    """Return the oldest collective that is not over on this rank; empty where none is, or nothing records them.

    To be asked only while a rank stands still: each answer looks at the events of all that are not over.
    """
    dump: Callable[..., bytes] | None = getattr(torch._C._distributed_c10d, "_dump_nccl_trace_json", None)
    return "" if dump is None else oldest_pending(dump(includeCollectives=True, onlyActive=True))
