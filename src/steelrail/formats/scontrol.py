"""Text of ``scontrol show job|partition|node|config`` to records. Pure.

Times are read as Unix seconds: the door asks for them with ``SLURM_TIME_FORMAT=%s``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from steelrail.formats.hostlist import expand

# Lines that hold one value to their end, blanks and equal signs included.
_WHOLE_LINE = (
    "Comment",
    "AdminComment",
    "SystemComment",
    "Extra",
    "Command",
    "WorkDir",
    "StdErr",
    "StdIn",
    "StdOut",
    "OS",
    "Reason",
)
_PAIR = re.compile(r"(\S+?)=(\S*)")
_DURATION = re.compile(r"^(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)$")

# Slurm's words for a job that will not run again by itself.
FINAL_STATES = frozenset(
    {
        "COMPLETED",
        "FAILED",
        "CANCELLED",
        "TIMEOUT",
        "DEADLINE",
        "OUT_OF_MEMORY",
        "NODE_FAIL",
        "BOOT_FAIL",
        "PREEMPTED",
        "REVOKED",
    }
)


@dataclass(frozen=True)
class JobView:
    """One job as the controller sees it now. Times are Unix seconds, none when Slurm does not know yet."""

    job_id: str
    name: str
    state: str
    reason: str
    restarts: int
    nodes: tuple[str, ...]
    num_nodes: int
    batch_host: str | None
    submitted: float | None
    started: float | None
    ends: float | None
    preempted: float | None
    partition: str
    comment: str
    excluded: tuple[str, ...]
    exit_code: str

    @property
    def final(self) -> bool:
        """Whether this state is one of those a job ends in."""
        return self.state in FINAL_STATES


@dataclass(frozen=True)
class NodeView:
    """One node: its base state in lower case (``idle``, ``down``), whether it answers, and why not."""

    name: str
    state: str
    responding: bool
    reason: str

    @property
    def lost(self) -> bool:
        """Whether Slurm has given this node up."""
        return self.state in ("down", "fail", "error", "unknown")


def parse_job(text: str) -> JobView:
    """Return the job in the text of ``scontrol show job ID``. Raises ``ValueError`` when there is none in it."""
    fields = _fields(text)
    if "JobId" not in fields:
        raise ValueError(f"scontrol must show a job, shows {text[:80]!r}")
    return JobView(
        job_id=fields["JobId"],
        name=fields.get("JobName", ""),
        state=fields.get("JobState", "UNKNOWN"),
        reason=fields.get("Reason", "None"),
        restarts=int(fields.get("Restarts", "0")),
        nodes=expand(fields.get("NodeList", "")),
        num_nodes=int(fields.get("NumNodes", "0").split("-")[0]),
        batch_host=fields.get("BatchHost"),
        submitted=_time(fields.get("SubmitTime")),
        started=_time(fields.get("StartTime")),
        ends=_time(fields.get("EndTime")),
        preempted=_time(fields.get("PreemptTime")),
        partition=fields.get("Partition", ""),
        comment=fields.get("Comment", ""),
        excluded=expand(fields.get("ExcNodeList", "")),
        exit_code=fields.get("ExitCode", "0:0"),
    )


def parse_nodes(text: str) -> tuple[NodeView, ...]:
    """Return the nodes in the text of ``scontrol show node LIST``."""
    return tuple(_node(_fields(block)) for block in re.split(r"\n\s*\n", text) if "NodeName=" in block)


def parse_config(text: str) -> Mapping[str, str]:
    """Return the settings in the text of ``scontrol show config``, such as ``KillWait`` to ``30 sec``."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def seconds(text: str) -> int | None:
    """Return the seconds in ``30 sec``, ``10``, ``00:10:00`` or ``1-00:00:00``; none for ``UNLIMITED`` and the like."""
    words = text.split()
    if words and words[0].isdigit():
        return int(words[0])
    match = _DURATION.match(text.strip())
    if match is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def _node(fields: Mapping[str, str]) -> NodeView:
    state = fields.get("State", "UNKNOWN")
    base = re.split(r"[+*~#!%$@^-]", state.lower(), maxsplit=1)[0]
    silent = "*" in state or "NOT_RESPONDING" in state
    return NodeView(fields["NodeName"], base, not silent, fields.get("Reason", ""))


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.strip().partition("=")
        if name in _WHOLE_LINE:
            fields[name] = value.strip()
        else:
            fields.update(_PAIR.findall(line))
    return fields


def _time(text: str | None) -> float | None:
    return float(text) if text and text.isdigit() else None
