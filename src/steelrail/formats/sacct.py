"""Text of ``sacct --duplicates --parsable2 --format=SACCT_FORMAT`` to typed rows, with or without head line. Pure.

Call it with ``SLURM_TIME_FORMAT=%s`` in its environment, so that times are Unix seconds. One row a segment: a requeued
job has one for every time it ran, a job that lost a node and went on has one that ends RESIZING; steps have their own.
Seen on Slurm 22.05.8; the fields are in every later version (sacct(1), "JOB ACCOUNTING FIELDS").
"""

from __future__ import annotations

from dataclasses import dataclass

from steelrail.errors import AccountingError, must
from steelrail.formats import hostlist

# Free text last: a comment may hold the separator. Names of jobs and partitions may not.
SACCT_FIELDS = (
    "JobIDRaw",
    "State",
    "ExitCode",
    "DerivedExitCode",
    "Submit",
    "Start",
    "End",
    "ElapsedRaw",
    "NNodes",
    "NodeList",
    "AllocTRES",
    "Partition",
    "User",
    "Reason",
    "JobName",
    "Comment",
)
SACCT_FORMAT = ",".join(SACCT_FIELDS)

# States of a row that is not over. REQUEUED, PREEMPTED and RESIZING end a row, though not the job.
OPEN_STATES = frozenset(
    ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")
)
# States after which the same job id runs again: a last row with one of these is not the job's end.
CONTINUED_STATES = frozenset(("REQUEUED", "RESIZING", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"))
_HEAD = "JobIDRaw|State|"
_NO_TIME = frozenset(("", "Unknown", "None", "N/A", "0"))


@dataclass(frozen=True)
class SacctRow:
    """One row. Times are Unix seconds, none where Slurm knows none; ``step`` is none for the row of the job itself.

    ``state`` is the first word (``CANCELLED by 1000`` is ``CANCELLED``). ``gpus`` and ``cpus`` are what was allocated.
    """

    job_id: str
    step: str | None
    state: str
    exit_code: int
    exit_signal: int
    derived_exit_code: int
    submit: float | None
    start: float | None
    end: float | None
    elapsed_seconds: int
    num_nodes: int
    nodes: tuple[str, ...]
    gpus: int
    cpus: int
    billing: int
    partition: str
    user: str
    reason: str
    name: str
    comment: str

    @property
    def open(self) -> bool:
        """True while Slurm has not ended the row."""
        return self.state in OPEN_STATES or self.end is None


def parse(text: str) -> tuple[SacctRow, ...]:
    """Return the rows of ``sacct``'s output, in its order. Raises ``AccountingError`` on a line of another shape."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(_HEAD)]
    return tuple(_row(line) for line in lines)


def job_rows(rows: tuple[SacctRow, ...]) -> dict[str, tuple[SacctRow, ...]]:
    """Return each job's own rows (no steps), oldest first, by job id."""
    jobs: dict[str, list[SacctRow]] = {}
    for row in rows:
        if row.step is None:
            jobs.setdefault(row.job_id, []).append(row)
    return {job: tuple(sorted(own, key=_age)) for job, own in jobs.items()}


def over(rows: tuple[SacctRow, ...]) -> bool:
    """Return whether a job's own rows (oldest first) say that it has ended and will not run again."""
    return bool(rows) and not any(row.open for row in rows) and rows[-1].state not in CONTINUED_STATES


def tres(text: str) -> dict[str, int]:
    """Return counts of a TRES text such as ``billing=16,cpu=16,gres/gpu=64,node=4``; sizes (mem) are left out."""
    pairs = (item.partition("=") for item in text.split(",") if "=" in item)
    return {name: int(count) for name, _, count in pairs if count.isdecimal()}


def _row(line: str) -> SacctRow:
    fields = line.split("|", len(SACCT_FIELDS) - 1)
    if len(fields) != len(SACCT_FIELDS):
        raise AccountingError(
            must(
                "a row of sacct",
                f"{len(SACCT_FIELDS)} fields",
                len(fields),
                repr(line[:120]),
                "check the sacct in PATH",
            )
        )
    try:
        return _typed(dict(zip(SACCT_FIELDS, fields, strict=True)))
    except ValueError as error:
        raise AccountingError(
            must("a row of sacct", "numbers and times", f"not ({error})", repr(line[:200]), "set SLURM_TIME_FORMAT=%s")
        ) from error


def _typed(field: dict[str, str]) -> SacctRow:
    job_id, _, step = field["JobIDRaw"].partition(".")
    code, signal = _exit(field["ExitCode"])
    counts = tres(field["AllocTRES"])
    return SacctRow(
        job_id=job_id,
        step=step or None,
        state=(field["State"].split() or ["UNKNOWN"])[0],
        exit_code=code,
        exit_signal=signal,
        derived_exit_code=_exit(field["DerivedExitCode"])[0],
        submit=_time(field["Submit"]),
        start=_time(field["Start"]),
        end=_time(field["End"]),
        elapsed_seconds=int(field["ElapsedRaw"] or 0),
        num_nodes=int(field["NNodes"] or 0),
        nodes=hostlist.expand(field["NodeList"]),
        gpus=_gpus(counts),
        cpus=counts.get("cpu", 0),
        billing=counts.get("billing", 0),
        partition=field["Partition"],
        user=field["User"],
        reason=field["Reason"],
        name=field["JobName"],
        comment=field["Comment"],
    )


def _gpus(counts: dict[str, int]) -> int:
    """GPUs of a TRES; typed counts (``gres/gpu:h100``) repeat the plain one where both stand."""
    typed = sum(count for name, count in counts.items() if name.startswith("gres/gpu:"))
    return counts.get("gres/gpu", typed)


def _exit(text: str) -> tuple[int, int]:
    code, _, signal = text.partition(":")
    return int(code or 0), int(signal or 0)


def _time(text: str) -> float | None:
    return None if text in _NO_TIME else float(int(text))


def _age(row: SacctRow) -> tuple[float, float]:
    never = float("inf")
    return (row.start or never, row.submit or never)
