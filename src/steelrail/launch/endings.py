"""Why an attempt ended: from what was seen to one ending, with the culprit named. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from steelrail.artifacts.train import Ending
from steelrail.artifacts.trainer import EXIT_DONE, EXIT_ERROR, EXIT_FULL, EXIT_ROLLED_BACK, EXIT_SAVED
from steelrail.formats.srun import TaskEnd
from steelrail.launch.memory import DO, HOST

# What a healthy rank raises because another one is gone: never the cause.
_OF_A_PEER = (
    "closed by peer",
    "connection reset",
    "broken pipe",
    "distbackenderror",
    "distnetworkerror",
    "connection refused",
    "remote process exited",
    "ncclremoteerror",
    "timed out waiting",
    "read timeout",
    "op=recv",
)

# Exit codes above this say which signal ended a process; below, an executable that could not be started says 2 or 5.
_SIGNALLED = 128


@dataclass(frozen=True)
class RankFault:
    """What a rank wrote before it ended in error. ``exit_code`` is that of the error's branch."""

    rank: int
    host: str
    type: str
    message: str
    step: int | None
    trace: str
    exit_code: int
    time: float

    @property
    def of_a_peer(self) -> bool:
        """Whether this only says that another rank was gone."""
        text = f"{self.type} {self.message}".lower()
        return self.type not in DO and any(mark in text for mark in _OF_A_PEER)

    @property
    def mark(self) -> str:
        """What makes two faults the same. Of memory that ran out every number differs each time."""
        return self.type if self.type in DO else f"{self.type}: {' '.join(self.message.split())[:200]}"


@dataclass(frozen=True)
class Hang:
    """A rank that made no progress: who, where, for how long, and what it was at.

    ``stands_out``: this rank differs from the others; without that its host is not to blame. ``host_silent``: so is
    every other rank of its host, which is likely gone.
    """

    rank: int
    host: str
    seconds: float
    doing: str
    silent: bool
    stands_out: bool = True
    host_silent: bool = False


@dataclass(frozen=True)
class Observed:
    """Everything that is known when the ranks of an attempt are gone.

    ``exits`` maps ranks to the exit code that they announced; a killed rank announced none. ``asked`` says what we told
    the ranks to save for. ``terminated``: the job as a whole was sent TERM. ``near_limit``: the time limit is within
    the lead. ``lived``: some rank came as far as its own first word. ``bad_step``: why it was rolled back, in words.
    """

    world_size: int
    exit_code: int
    exits: Mapping[int, int]
    faults: Sequence[RankFault]
    task_ends: Sequence[TaskEnd]
    hang: Hang | None = None
    asked: Literal["stop", "budget", "walltime"] | None = None
    terminated: bool = False
    near_limit: bool = False
    lost_nodes: Sequence[str] = ()
    lived: bool = True
    full: bool = False
    starter_killed: str | None = None
    bad_step: str | None = None

    @property
    def ran_full(self) -> bool:
        """Whether the results folder's file system took no more: ``full`` now, or by what a process ended with."""
        codes = {*self.exits.values(), *(end.exit_code for end in self.task_ends)}
        codes |= {self.exit_code, *(fault.exit_code for fault in self.faults)}
        return self.full or EXIT_FULL in codes


@dataclass(frozen=True)
class Verdict:
    """The ending, in words for the user. ``culprit`` is a host; ``mark`` and ``step`` make equal errors comparable."""

    ending: Ending
    reason: str
    exit_code: int | None = None
    culprit: str | None = None
    rank: int | None = None
    mark: str | None = None
    step: int | None = None
    trace: str = ""
    host_silent: bool = False


def judge(seen: Observed) -> Verdict:
    """Return why the attempt ended."""
    if _all_said(seen, {EXIT_DONE}):
        return Verdict(Ending.DONE, "all steps are done", EXIT_DONE)
    if seen.ran_full:
        # Whatever else was said or left unsaid: half of it may be missing.
        return Verdict(Ending.JOB_ERROR, "the results folder's file system is full", EXIT_FULL, mark="full")
    if seen.hang is not None:
        return _stalled(seen.hang)
    if seen.lost_nodes:
        names = ", ".join(seen.lost_nodes)
        return Verdict(Ending.NODE_FAILURE, f"Slurm lost {names}", seen.exit_code, seen.lost_nodes[0])
    if _saved(seen):
        return _asked(seen)
    if _all_said(seen, {EXIT_ROLLED_BACK}):
        return _rolled_back(seen)
    # A rank that fell over while the job was being taken down says nothing about the code.
    if seen.terminated and not _own_fault(seen):
        return Verdict(Ending.PREEMPTION, "the job was told to end before every rank had saved", seen.exit_code)
    if seen.asked is not None:
        return _asked(seen, " before every rank had saved")
    return _error(seen)


def close(state: str | None, requeued: bool) -> Verdict:
    """Return the ending of an attempt whose supervisor is gone, from Slurm's word for its segment (none: not known).

    ``requeued``: a later segment of the same job exists, so something put it back into the queue.
    """
    endings = {
        "NODE_FAIL": (Ending.NODE_FAILURE, "Slurm lost a node"),
        "PREEMPTED": (Ending.PREEMPTION, "a job of higher priority took the nodes"),
        "REQUEUED": (Ending.REQUEUED, "the job was put back into the queue"),
        "CANCELLED": (Ending.CANCELLED, "the job was cancelled"),
        "TIMEOUT": (Ending.WALLTIME, "the time limit was reached"),
        "DEADLINE": (Ending.WALLTIME, "the job's deadline was reached"),
        "OUT_OF_MEMORY": (Ending.JOB_ERROR, "the job ran out of memory on its host"),
        "BOOT_FAIL": (Ending.NODE_FAILURE, "a node did not boot"),
        "FAILED": (Ending.JOB_ERROR, "the supervisor ended without saying why"),
        "COMPLETED": (Ending.JOB_ERROR, "the supervisor ended without saying why"),
    }
    if state in endings:
        ending, reason = endings[state]
        return Verdict(ending, reason)
    if requeued:
        return Verdict(Ending.REQUEUED, "the job was put back into the queue; Slurm does not say why")
    return Verdict(Ending.UNKNOWN, f"Slurm says {state or 'nothing'} of this segment")


def _all_said(seen: Observed, codes: set[int]) -> bool:
    """Whether every rank said one of these exit codes, and none said anything else."""
    return len(seen.exits) == seen.world_size and set(seen.exits.values()) <= codes


def _saved(seen: Observed) -> bool:
    """Whether every rank said that it saved (or was done)."""
    return _all_said(seen, {EXIT_SAVED, EXIT_DONE})


def _rolled_back(seen: Observed) -> Verdict:
    """What was asked of the run counts more: the roll back waits in the store for whichever attempt is next."""
    if seen.terminated or seen.asked in ("stop", "budget"):
        return _asked(seen, ", and a bad step was rolled back")
    return Verdict(Ending.ROLLED_BACK, f"a bad step: {seen.bad_step or 'see the notes'}", EXIT_ROLLED_BACK)


def _asked(seen: Observed, but: str = "") -> Verdict:
    if seen.asked == "stop":
        return Verdict(Ending.STOPPED, f"a stop was asked for{but}", seen.exit_code)
    if seen.asked == "budget":
        return Verdict(Ending.BUDGET, f"the budget is spent{but}", seen.exit_code)
    if seen.terminated:
        return Verdict(Ending.PREEMPTION, f"the job was told to end{but}", seen.exit_code)
    if seen.near_limit or seen.asked == "walltime":
        return Verdict(Ending.WALLTIME, f"the time limit is near{but}", seen.exit_code)
    return Verdict(Ending.WALLTIME, f"the ranks were signalled to save{but}", seen.exit_code)


def _stalled(hang: Hang) -> Verdict:
    if not hang.stands_out:
        reason = f"all ranks waited for each other for {hang.seconds:.0f} s, at: {hang.doing} (a link, or a lost node)"
        return Verdict(Ending.STALLED, reason, mark=f"hang of all ranks: {hang.doing}")
    how = "gave no sign of life" if hang.silent else "made no progress"
    reason = f"rank {hang.rank} on {hang.host} {how} for {hang.seconds:.0f} s, at: {hang.doing}"
    mark = f"hang of rank {hang.rank}: {hang.doing}"
    return Verdict(Ending.STALLED, reason, None, hang.host, hang.rank, mark, host_silent=hang.host_silent)


def _own_fault(seen: Observed) -> RankFault | None:
    """The earliest fault that is not merely about a peer."""
    own = [fault for fault in seen.faults if not fault.of_a_peer and fault.exit_code != EXIT_SAVED]
    return min(own, key=lambda fault: fault.time, default=None)


def _silent_end(seen: Observed) -> TaskEnd | None:
    """The rank that ended first without a word of its own: later ones followed it, and what others say is of it."""
    spoken = {fault.rank for fault in seen.faults} | set(seen.exits)
    silent = (end for end in seen.task_ends if end.rank not in spoken and (end.killed or end.exit_code is not None))
    return next(silent, None)


def _error(seen: Observed) -> Verdict:
    silent, fault = _silent_end(seen), _own_fault(seen)
    killed = silent if silent is not None and silent.killed else None
    if fault is not None and not (killed and killed.out_of_memory):
        return _of_fault(fault)
    if killed is not None and killed.out_of_memory:
        return _without_a_word(seen, killed, f"was killed, {HOST}: {killed.how}; {DO[HOST]}", HOST)
    if killed is not None:
        how = f"was ended by a signal ({killed.how})"
        return _without_a_word(seen, killed, how, f"rank killed: {killed.how}")
    if seen.starter_killed is not None and not seen.task_ends:
        # What ranks say then is of each other alone. Where ends were seen, it is we who ended the rest.
        mark = "starter killed" if seen.lived else None
        return Verdict(Ending.JOB_ERROR, seen.starter_killed, _silent(seen.exit_code), mark=mark)
    if seen.faults and silent is None:
        return _of_fault(min(seen.faults, key=lambda one: one.time))
    first = silent or next(iter(seen.task_ends), None)
    if first is not None:
        return _without_a_word(seen, first, f"ended without a word ({first.how})", f"no word: {first.how}")
    reason = f"the ranks ended with exit code {seen.exit_code} and said nothing"
    return Verdict(Ending.JOB_ERROR, reason, _silent(seen.exit_code), mark="silent end" if seen.lived else None)


def _without_a_word(seen: Observed, end: TaskEnd, how: str, mark: str) -> Verdict:
    """The verdict on a rank that left no fault.

    Ended by a signal before any rank lived is Slurm's doing, not an error of the code that repeats: seen of a node that
    had been given up and came back, whose slurmd ends every step of the job while it clears the old one away.
    """
    own = seen.lived or end.exit_code is not None
    reason = f"rank {end.rank} on {end.host} {how}" + ("" if seen.lived else ", before any rank lived")
    return Verdict(Ending.JOB_ERROR, reason, _silent(seen.exit_code), end.host, end.rank, mark if own else None)


def _silent(code: int) -> int:
    """The code of an end without a word: a small number is then no error of ours (2 is also a missing executable)."""
    return code if code >= _SIGNALLED else EXIT_ERROR


def _of_fault(fault: RankFault) -> Verdict:
    at = "" if fault.step is None else f" at step {fault.step}"
    do = f"; {DO[fault.type]}" if fault.type in DO else ""
    reason = f"rank {fault.rank} on {fault.host}{at}: {fault.type}: {fault.message}{do}"
    return Verdict(
        Ending.JOB_ERROR, reason, fault.exit_code, fault.host, fault.rank, fault.mark, fault.step, fault.trace
    )
