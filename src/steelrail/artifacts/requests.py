"""Requests that the store answered, by what stores charge for: counted where they are made, priced beside the bill.

A rank tells its counts in its event file. Every other process (the head, a shard job, the supervisor) notes them once,
in ``results/<run>/requests.jsonl``, with the stage and the key that it worked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from steelrail.artifacts.files import Artifact, append_line
from steelrail.artifacts.reading import read_lines

FILE = "requests.jsonl"


class Requests(Artifact):
    """How often the store answered. ``put`` holds COPY and POST (parts) too, ``get`` HEAD, ``delete`` aborts."""

    put: int = 0
    get: int = 0
    list: int = 0
    delete: int = 0

    def __add__(self, other: Requests) -> Requests:
        """Return both together."""
        return Requests(
            put=self.put + other.put,
            get=self.get + other.get,
            list=self.list + other.list,
            delete=self.delete + other.delete,
        )


class NotedRequests(Artifact):
    """What one process asked of the store for a stage, and the key it worked for."""

    stage: Literal["corpus", "shards", "train"]
    key: str
    requests: Requests


def note_requests(run_folder: Path, noted: NotedRequests) -> None:
    """Append what one process asked. Raises ``FullError``."""
    append_line(run_folder / FILE, noted.model_dump_json().encode())


def noted_requests(run_folder: Path) -> tuple[NotedRequests, ...]:
    """Return what was noted, oldest first. A torn line (a killed writer) is left out.

    Raises ``InputError`` at a line that no writer wrote.
    """
    return tuple(read_lines(run_folder / FILE, NotedRequests, "requests noted"))
