"""What torch's flight recorder of NCCL says, to the collective that a rank waits in. Pure."""

from __future__ import annotations

import json

from steelrail.errors import InputError, must

COMPLETED = "completed"


def oldest_pending(text: str | bytes) -> str:
    """Return the collective that was handed in first and is not over, such as ``all_gather 118 of default_pg``.

    Empty where none is. Raises ``InputError`` for a text that is no recording.
    """
    try:
        entries = json.loads(text).get("entries", [])
        pending = [one for one in entries if one["state"] != COMPLETED]
        if not pending:
            return ""
        first = min(pending, key=lambda one: int(one["record_id"]))
        name = str(first["profiling_name"]).rpartition(":")[2]
        return f"{name} {first['collective_seq_id']} of {first['process_group'][1]}"
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        what = must("recording", "JSON of torch's flight recorder", f"not ({error!r})", "flight recorder", "report it")
        raise InputError(what) from error
