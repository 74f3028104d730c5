"""What the ranks reported, read from their event files once, a rank at a time. An edge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from steelrail.artifacts.events import Event, read_events
from steelrail.artifacts.requests import Requests
from steelrail.artifacts.train import Attempt
from steelrail.artifacts.trainer import RunFolder
from steelrail.cost import requests, storage
from steelrail.cost.pieces import Reports
from steelrail.errors import InputError
from steelrail.log import logger

_log = logger(__name__)


class Reader:
    """Reads the ranks' events, and notes on the way what reached the store (``sizes``, by step), the held-out
    ``losses`` (by step), and how often the store answered (``requests``, by attempt)."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self.sizes: dict[int, int] = {}
        self.losses: dict[int, float] = {}
        self.requests: dict[int, Requests] = {}

    def reports(self, attempt: Attempt) -> Reports:
        """Return what the ranks of one attempt reported."""
        own = self._folder.events(attempt.attempt, 0).parent.glob(f"attempt-{attempt.attempt:04d}-rank-*.jsonl")
        hosts = {int(path.stem.rsplit("-", 1)[1]): _first_host(path) for path in own}
        return Reports(hosts, lambda rank: self._read(attempt.attempt, rank))

    def _read(self, attempt: int, rank: int) -> Sequence[Event]:
        events = _events(self._folder.events(attempt, rank))
        for step, size in storage.durable_bytes(events).items():
            # A step saved again after a restart takes the place of the first: only one of them is kept.
            self.sizes[step] = max(self.sizes.get(step, 0), size)
        self.losses |= storage.heldout_losses(events)
        asked = requests.told(events)
        if asked is not None:
            self.requests[attempt] = self.requests.get(attempt, Requests()) + asked
        return events


def _first_host(path: Path) -> str:
    return next((event.host for event in _events(path, most=1)), "")


def _events(path: Path, most: int | None = None) -> list[Event]:
    found: list[Event] = []
    try:
        for event in read_events(path):
            found.append(event)
            if len(found) == most:
                break
    except InputError as error:
        _log.warning("%s; what comes after is not used", error)
    return found
