"""What the start of an attempt took, by part: from the supervisor's word to the end of rank 0's first step. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from steelrail.artifacts.events import Event


def start_parts(began: float, events: Iterable[Event]) -> dict[str, float]:
    """Return seconds by part, in order, as far as the attempt came; they sum to the whole.

    ``began`` is when the supervisor started it (Unix s); ``events`` are rank 0's. Parts: ``srun`` to the
    node's process, ``load`` of torch and fork, ``meet`` to the first collective, ``fabric check``, ``restore`` with
    stage in and the model's building, ``first step``.
    """
    found: dict[str, float] = {}
    at = began
    for name, time in _marks(events):
        found[name] = round(max(0.0, time - at), 3)
        at = max(at, time)
    return found


def _marks(events: Iterable[Event]) -> Iterable[tuple[str, float]]:
    """Yield each part with the moment at which it was over (Unix s)."""
    entered = False
    for event in events:
        if event.kind == "reached" and event.data["what"] == "process":
            yield "srun", float(event.data["since"])
            yield "load", event.time
        elif event.kind == "reached":
            yield "meet", event.time
        elif event.kind == "check":
            yield "fabric check", event.time
        elif event.kind == "enter" and event.data["category"] == "productive" and not entered:
            entered = True
            yield "restore", event.time
        elif event.kind == "step":
            yield "first step", event.time
