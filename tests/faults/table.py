"""The table of a run of the fault matrix: a line for every row, moment and server, and the verdict."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import boto3
import pytest
import servers
import torch

PROJECT = Path(__file__).resolve().parents[2]


@dataclass
class Line:
    """One test: which row and moment of the matrix, on which server, what it came to, and the figure it showed."""

    row: int
    moment: str
    claim: str
    server: str
    outcome: str
    figure: str
    seconds: float

    def text(self) -> str:
        """Return the line as it is printed."""
        place = f"row {self.row:2d}  {self.server:9s}  {self.outcome:6s}  {self.seconds:5.1f} s"
        return f"{place}  {self.moment}: {self.claim.replace('_', ' ')}" + (f"  [{self.figure}]" if self.figure else "")


@dataclass
class Table:
    """Lines by test, as their phases are reported."""

    found: dict[str, Line] = field(default_factory=dict)

    def add(self, report: pytest.TestReport) -> None:
        """Take a phase of a test. One that fails in its set-up or in its end has failed."""
        known = dict(report.user_properties)
        # xdist puts the group after it.
        own = report.nodeid.partition("@")[0]
        name, _, parameters = own.rpartition("::")[2].partition("[")
        words = parameters.rstrip("]").split("-")
        server = next((one for one in words if one in ("seaweedfs", "ceph")), "")
        rest = "-".join(one for one in words if one and one != server)
        before = self.found.get(report.nodeid)
        claim = name.removeprefix("test_") + (f" ({rest})" if rest else "")
        line = before or Line(int(str(known["row"])), str(known["moment"]), claim, server, "", "", 0.0)
        line.figure = str(known.get("figure", ""))
        line.seconds += report.duration
        if line.outcome != "failed":
            line.outcome = report.outcome
        self.found[report.nodeid] = line

    def lines(self) -> list[str]:
        """Return the table, by row."""
        return [line.text() for line in self.sorted()]

    def sorted(self) -> list[Line]:
        """Return the lines by row and server."""
        return sorted(self.found.values(), key=lambda line: (line.row, line.moment, line.claim, line.server))

    def verdict(self) -> str:
        """Return the last line: what is neither is no row that was asked for."""
        passed = sum(line.outcome == "passed" for line in self.found.values())
        return f"{passed} passed, {len(self.found) - passed} failed"

    def keep(self, path: Path, asked: Sequence[str]) -> None:
        """Leave the table for others to read, with what makes it comparable."""
        path.parent.mkdir(parents=True, exist_ok=True)
        said = {
            "asked": list(asked),
            "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
            "machine": f"{socket.gethostname()}, {os.cpu_count()} cores, {platform.platform()}",
            "versions": {
                "python": platform.python_version(), "torch": torch.__version__, "boto3": boto3.__version__
            },
            "servers": [servers.version(name) for name in sorted({line.server for line in self.found.values()})],
            "commit": _commit(),
            "verdict": self.verdict(),
            "rows": [asdict(line) for line in self.sorted()],
        }  # fmt: skip
        path.write_text(json.dumps(said, indent=1) + "\n")


def _commit() -> str:
    done = subprocess.run(
        ["git", "-C", str(PROJECT), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
