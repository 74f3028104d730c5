"""What a rank of the fabric job does once torch is there: meet the others, measure, write what was found. An edge."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

from steelrail import log
from steelrail.artifacts.fabric import Measurement, PairMeasurement
from steelrail.artifacts.files import write_artifact
from steelrail.clients import clock
from steelrail.clients.device import own_device
from steelrail.clients.meeting import connect, meet
from steelrail.clients.ranks import Master, RankPlace
from steelrail.config.keys import fabric_key
from steelrail.config.schema import Run
from steelrail.errors import FabricError
from steelrail.fabric.algorithms import name_algorithms
from steelrail.fabric.facts import AbsentError, Facts, RankFact, merge_nodes
from steelrail.fabric.folder import JobFolder
from steelrail.fabric.gather import gather_records
from steelrail.fabric.health import check_device
from steelrail.fabric.judge import judge
from steelrail.fabric.measure import World, measure_pairs, measure_world
from steelrail.fabric.pairs import judge_pairs, link_ratio
from steelrail.fabric.probe import look_around, nccl_version
from steelrail.fabric.progress import Progress
from steelrail.fabric.sizes import messages
from steelrail.fabric.tries import measure_seconds, wait_seconds
from steelrail.formats.nccl import parse_log

_log = log.logger(__name__)
_FACT = TypeAdapter(RankFact)
_MAX_CPU_BYTES = 4_000_000


def measure(run: Run, place: RankPlace, at: Master, folder: JobFolder, progress: Progress) -> None:
    """Meet the other ranks, measure, and on rank 0 write the report.

    The process group is left standing: gloo's own ending resets its connections, so that bytes on their way to a slower
    rank are lost, and NCCL's may wait. All ranks are through with it after the barrier, and end next.
    """
    started = clock.now()
    device = own_device(run, place, 1, FabricError)
    _ask_nccl_to_say(folder, place, device)
    with progress.part("meet"):
        store = meet(place, at, wait_seconds(run), AbsentError)
    with progress.part("connect"):
        connect(store, "fabric", place, device, wait_seconds(run))
        # NCCL wants a collective of all ranks before any exchange of two.
        dist.all_reduce(torch.zeros(1, device=device))
    with progress.part("health"):
        fact = _own_fact(run, place, device)
        everyone = gather_records(fact, _FACT, device)
    world = World(place, device, tuple(one.host for one in everyone), clock.monotonic, run.fabric, measure_seconds(run))
    with progress.part("pairs"):
        pairs = measure_pairs(world)
    with progress.part("collectives"):
        # Over links that no one may train on it would take long, and change nothing of the verdict.
        sound = not judge_pairs(pairs, link_ratio(run.fabric.slow_ratio, device.type)).findings
        measured = _measure_messages(run, world) if sound else ()
    with progress.part("leave"):
        dist.barrier()
    if place.rank == 0:
        progress.begin("report")
        _write(_facts(run, everyone, pairs, measured, started, progress, folder), run, folder)


def _own_fact(run: Run, place: RankPlace, device: torch.device) -> RankFact:
    health = check_device(device, run.fabric.matrix_size, run.fabric.repeats, clock.monotonic)
    return look_around(place, device, health)


def _measure_messages(run: Run, world: World) -> tuple[Measurement, ...]:
    cap = _MAX_CPU_BYTES if world.device.type == "cpu" else None
    library = f"nccl {nccl_version()}" if world.device.type == "cuda" else f"gloo of torch {torch.__version__}"
    wanted = messages(run.train.model, run.train.precision, world.place.world_size, cap)
    return measure_world(world, wanted, library)


def _ask_nccl_to_say(folder: JobFolder, place: RankPlace, device: torch.device) -> None:
    """Have rank 0's NCCL write down what it chooses, unless the run file already directs its log."""
    if device.type == "cuda" and place.rank == 0 and "NCCL_DEBUG" not in os.environ:
        os.environ["NCCL_DEBUG"] = "INFO"
        os.environ["NCCL_DEBUG_SUBSYS"] = "INIT,P2P,NET,TUNING"
        os.environ["NCCL_DEBUG_FILE"] = str(folder.nccl_log(0))


def _facts(
    run: Run, everyone: list[RankFact], pairs: tuple[PairMeasurement, ...], measured: tuple[Measurement, ...],
    started: float, progress: Progress, folder: JobFolder,
) -> Facts:  # fmt: skip
    said = folder.nccl_log(0)
    nccl = parse_log(said.read_text(errors="replace")) if said.is_file() else None
    return Facts(
        run=run.name,
        key=fabric_key(run),
        backend="nccl" if run.shape.device == "cuda" else "gloo",
        device=run.shape.device,
        nodes=merge_nodes(everyone),
        pairs=pairs,
        world=name_algorithms(measured, nccl) if nccl else measured,
        started=started,
        measured=clock.now(),
        seconds=progress.seconds,
    )


def _write(facts: Facts, run: Run, folder: JobFolder) -> None:
    verdict = judge(facts, run)
    for finding in verdict.findings:
        _log.warning("%s: %s: %s", finding.severity, finding.culprit, finding.what)
    took = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in facts.seconds.items())
    _log.info("fabric of %d nodes is %s (%s)", len(facts.nodes), "fit" if verdict.fit else "unfit", took)
    write_artifact(folder.report, facts)
