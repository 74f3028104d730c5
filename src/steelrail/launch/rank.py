"""One rank of one attempt: ``main`` of a process forked by ``launch.node``. An edge.

Probes come before the process group, the fence's epoch from the supervisor.
Whatever happens, this process says how it ended: an ``end`` event, an error file if it failed, and its exit code.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from steelrail import log
from steelrail.artifacts.events import EventWriter
from steelrail.artifacts.files import write_whole
from steelrail.artifacts.trainer import CLEAN_EXITS, EXIT_DONE, EXIT_ROLLED_BACK, EXIT_SAVED, RunFolder, exit_code_of
from steelrail.clients import clock, process
from steelrail.clients.ranks import EPOCH, NODE_STARTED, RankPlace, master, rank_place
from steelrail.config.drills import drill_at
from steelrail.config.schema import Category, Run
from steelrail.launch.endings import RankFault
from steelrail.launch.freeze import Frozen, read_frozen
from steelrail.launch.memory import ran_out
from steelrail.launch.probes import probe_node
from steelrail.launch.pulse import Ears, Pulse
from steelrail.launch.tally import Tally
from steelrail.train.drills import perform

if TYPE_CHECKING:
    from steelrail.train.context import Outcome

_log = log.logger(__name__)
# Loaded once a node, before the ranks are forked: what brings torch, and what torch and boto3 load at their first use.
PRELOAD = (
    "steelrail.launch.rank_train",
    "torch._dynamo",
    "torch._inductor",
    "torch.utils.tensorboard",
    "boto3.s3.inject",
)


@dataclass(frozen=True)
class Rank:
    """What every part of a rank's life needs."""

    run: Run
    frozen: Frozen
    folder: RunFolder
    attempt: int
    epoch: int
    place: RankPlace
    events: EventWriter
    pulse: Pulse
    ears: Ears

    @property
    def key(self) -> str:
        """Key of the model."""
        return self.folder.root.name

    def enter(self, category: Category, doing: str) -> None:
        """Time belongs to ``category`` from now on; drills of that category happen now."""
        self.events.enter(category)
        self.pulse.beat(None, doing)
        self.drill(category)

    def drill(self, category: Category) -> None:
        """Carry out the faults put in on purpose for this category."""
        drills = drill_at(self.run.drills, category, rank=self.place.rank, attempt=self.attempt)
        perform(drills, clock.now, clock.sleep, self.events)


def main(argv: list[str]) -> int:
    """Live one rank's life and return its exit code. ``argv``: module, run folder, attempt."""
    ears = Ears()
    ears.start()
    faulthandler.register(signal.SIGQUIT)
    folder, attempt, place = RunFolder(Path(argv[1])), int(argv[2]), rank_place()
    pulse = Pulse(folder.heartbeat(place.rank), attempt, place.rank, place.host)
    pulse.start()
    events = _events(folder, attempt, place)
    tally = Tally(events)
    tally.start()
    log.configure()
    try:
        code, reason = _live(folder, attempt, place, events, pulse, ears)
    except BaseException as error:  # noqa: BLE001  (the last place where this process can say what happened)
        code, reason = _fail(error, folder, attempt, place, events, pulse)
    tally.close()
    _end(events, code, reason)
    return code


def _live(
    folder: RunFolder, attempt: int, place: RankPlace, events: EventWriter, pulse: Pulse, ears: Ears
) -> tuple[int, str]:
    run, frozen = read_frozen(folder)
    rank = Rank(run, frozen, folder, attempt, int(os.environ[EPOCH]), place, events, pulse, ears)
    rank.drill("startup")
    pulse.beat(None, "probes")
    probe_node(run, frozen, folder, place)
    pulse.beat(None, "imports")
    from steelrail.launch.rank_train import train_rank

    return ended(train_rank(rank, master()), ears.heard)


def ended(outcome: Outcome, heard: signal.Signals | None) -> tuple[int, str]:
    """Return a rank's exit code and reason. A signal is named: TERM may have come to the ranks alone (``traces``)."""
    from steelrail.train.context import Outcome

    name = heard.name if heard else ""
    return {
        Outcome.DONE: (EXIT_DONE, "done"),
        Outcome.SAVED_ON_SIGNAL: (EXIT_SAVED, f"saved on {name or 'a signal'}"),
        Outcome.ROLLED_BACK: (EXIT_ROLLED_BACK, f"rolled back as {name} came" if name else "rolled back"),
    }[outcome]


def _events(folder: RunFolder, attempt: int, place: RankPlace) -> EventWriter:
    """Open the event file with time counted from the start of this process, interpreter and imports included."""
    moments = [process.started(os.getpid()) or clock.now()]
    path = folder.events(attempt, place.rank)
    events = EventWriter(path, attempt, place.rank, place.host, lambda: moments.pop() if moments else clock.now())
    events.enter("startup")
    events.write("reached", what="process", since=float(os.environ.get(NODE_STARTED, clock.now())))
    return events


def _fail(
    error: BaseException, folder: RunFolder, attempt: int, place: RankPlace, events: EventWriter, pulse: Pulse
) -> tuple[int, str]:
    code, out = exit_code_of(error), ran_out(error)
    name, message = type(error).__name__, " ".join(str(error).split())[:2000]
    fault = RankFault(
        rank=place.rank,
        host=getattr(error, "culprit", None) or place.host,
        type=out or name,
        message=message if out is None else f"{name}: {message}",
        step=pulse.step,
        trace="".join(traceback.format_exception(error))[-20_000:],
        exit_code=code,
        time=clock.now(),
    )
    # First where it is taken even when the file system is full.
    _log.error("rank %d on %s failed at %s\n%s", place.rank, place.host, pulse.doing, fault.trace)
    write_whole(folder.error(attempt, place.rank), json.dumps(asdict(fault), indent=1).encode())
    return code, f"{fault.type}: {message}"


def _end(events: EventWriter, code: int, reason: str) -> None:
    """Say the exit code, then let all ranks leave together: srun ends the others when one leaves with another code."""
    events.write("end", exit_code=code, reason=reason)
    events.close()
    if code in CLEAN_EXITS:
        from steelrail.launch.rank_train import leave

        leave()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of gloo, NCCL and boto3 would keep Python's own ending waiting.
    os._exit(code)
