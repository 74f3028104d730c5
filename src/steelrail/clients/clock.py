"""The door to time."""

from __future__ import annotations

import time


def now() -> float:
    """Return Unix time in seconds."""
    return time.time()


def monotonic() -> float:
    """Return seconds of a clock that never goes back."""
    return time.monotonic()


def sleep(seconds: float) -> None:
    """Wait."""
    time.sleep(seconds)
