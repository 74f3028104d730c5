"""Where one attempt keeps its checkpoints: the record that saving, uploading and restoring share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from steelrail.artifacts.events import Kind
from steelrail.checkpoints.keep import NO_ROLL_BACK
from steelrail.checkpoints.layout import StepId
from steelrail.clients.store import Store
from steelrail.config import schema


class Emit(Protocol):
    """Writes one event; ``artifacts.events.EventWriter.write`` is one."""

    def __call__(self, kind: Kind, **data: Any) -> object:
        """Write an event of ``kind`` with its data."""


def no_beat() -> None:
    """Give no sign of life: nobody watches."""


@dataclass(frozen=True)
class Home:
    """Store, run, key, fence epoch and NVMe folder (``layout.local_root``) of one attempt. ``beat``: sign of life.

    ``bad_step``: how far before a bad step a roll back may have to go, and how often (``keep``).
    """

    store: Store
    run: str
    key: str
    epoch: int
    local: Path
    settings: schema.Checkpoints
    beat: Callable[[], None] = no_beat
    bad_step: schema.BadStep = NO_ROLL_BACK

    def folder(self, which: StepId) -> Path:
        """Return a checkpoint's folder on NVMe."""
        return self.local / which.folder

    def object_key(self, which: StepId, name: str) -> str:
        """Return the store's key of one of a checkpoint's objects."""
        return self.store.key(self.run, self.key, "steps", which.folder, name)
