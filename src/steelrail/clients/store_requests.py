"""What the S3 store answered to this process, counted as answers come in: stores charge by request."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any, Literal

from steelrail.artifacts.requests import NotedRequests, Requests, note_requests

_KINDS = (
    (("List",), "list"),
    (("Get", "Head"), "get"),
    (("Delete", "Abort"), "delete"),
)


class Answered:
    """Answers since they were taken last. Safe to share between threads."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def heard(self, event_name: str, response_dict: Any = None, **_: Any) -> None:
        """Count one answer: botocore's ``response-received`` event, which comes for every try that was answered.

        What never reached the store has no answer, and for its own faults (5xx) a store charges nothing.
        """
        if response_dict is not None and response_dict["status_code"] < 500:
            with self._lock:
                self._counts[kind_of(event_name.rsplit(".", 1)[-1])] += 1

    def take(self) -> Requests:
        """Return what was counted, and begin anew."""
        with self._lock:
            taken, self._counts = self._counts, Counter()
        return Requests(**taken)


# Of the whole process: it is a process that tells what it asked, whichever of its stores asked it.
ANSWERED = Answered()


def kind_of(operation: str) -> str:
    """Return what an operation of S3 counts as: ``put`` unless it lists, reads or deletes."""
    return next((kind for prefixes, kind in _KINDS if operation.startswith(prefixes)), "put")


def note_answered(run_folder: Path, stage: Literal["corpus", "shards", "train"], key: str) -> None:
    """Note in the run's folder what this process asked of the store since it noted last."""
    taken = ANSWERED.take()
    if taken != Requests():
        note_requests(run_folder, NotedRequests(stage=stage, key=key, requests=taken))
