"""A rank's requests to the store, told to its event file every few seconds: a killed rank owes its last few."""

from __future__ import annotations

import contextlib
import threading

from steelrail.artifacts.events import EventWriter
from steelrail.artifacts.requests import Requests
from steelrail.clients.store_requests import ANSWERED
from steelrail.errors import FullError

TELL_SECONDS = 5.0


class Tally:
    """Tells the counts from a thread until it is closed."""

    def __init__(self, events: EventWriter) -> None:
        self._events, self._closing = events, threading.Event()
        self._thread = threading.Thread(target=self._run, name="requests", daemon=True)

    def start(self) -> None:
        """Begin to tell."""
        self._thread.start()

    def close(self) -> None:
        """Tell the last, even if there was none: silence would mean that nobody counted."""
        self._closing.set()
        self._thread.join()
        self._events.write("requests", **ANSWERED.take().model_dump())

    def _run(self) -> None:
        while not self._closing.wait(TELL_SECONDS):
            taken = ANSWERED.take()
            # On a full file system the line waits for the next one, and the rank's own events say what is wrong.
            with contextlib.suppress(FullError):
                if taken != Requests():
                    self._events.write("requests", **taken.model_dump())
