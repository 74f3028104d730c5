"""Where this rank is, kept in a file of its own: what a reader has of a rank that says no more. An edge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from steelrail.clients import clock
from steelrail.clients.ranks import RankPlace
from steelrail.fabric.whereabouts import Part, Whereabouts


@dataclass
class Progress:
    """What this rank is doing, and how long each part took (seconds)."""

    place: RankPlace
    path: Path
    doing: Part = "start"
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def part(self, doing: Part) -> Iterator[None]:
        """Say that a part begins, and time it."""
        self.begin(doing)
        start = clock.monotonic()
        yield
        self.seconds[doing] = round(clock.monotonic() - start, 3)

    def begin(self, doing: Part) -> None:
        """Say that this rank is at a part now."""
        self.doing = doing
        mine = Whereabouts(rank=self.place.rank, host=self.place.host, doing=doing, since=clock.now())
        temporary = self.path.with_suffix(".tmp")
        # Renamed but not flushed to disk: it need not outlive its node.
        temporary.write_text(mine.model_dump_json())
        temporary.replace(self.path)
