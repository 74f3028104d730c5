"""One rank of the fabric job: ``python -m steelrail.fabric.rank <job folder>``. An edge.

Reads ``run.json``, measures with all other ranks, and on rank 0 writes ``report.json`` last. A rank that fails says why
in ``error-rank-N.json``; the whole is bounded by ``slurm.fabric_minutes``.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from pydantic import TypeAdapter
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from steelrail import log
from steelrail.artifacts.fabric import Measurement, PairMeasurement
from steelrail.artifacts.files import write_artifact
from steelrail.clients import clock
from steelrail.clients.ranks import Master, RankPlace, master, rank_place
from steelrail.config.keys import fabric_key
from steelrail.config.schema import Run
from steelrail.errors import FabricError, SteelrailError, must
from steelrail.fabric.algorithms import name_algorithms
from steelrail.fabric.facts import Facts, RankError, RankFact, merge_nodes
from steelrail.fabric.folder import JobFolder
from steelrail.fabric.gather import gather_records
from steelrail.fabric.health import check_device
from steelrail.fabric.judge import judge
from steelrail.fabric.measure import World, measure_pairs, measure_world
from steelrail.fabric.probe import look_around, nccl_version
from steelrail.fabric.sizes import messages
from steelrail.formats.nccl import parse_log

_log = log.logger(__name__)
_FACT = TypeAdapter(RankFact)
# Seconds that pairs and collectives may take each, and the largest message on the CPU.
_BUDGET_SECONDS = 30.0
_MAX_CPU_BYTES = 4_000_000
_MEET_SECONDS = 120.0
_COLLECTIVE_SECONDS = 120.0


@dataclass
class Progress:
    """What this rank is doing, for the error file; and how long each part took."""

    doing: str = "start"
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def part(self, doing: str) -> Iterator[None]:
        """Time a part and remember that it is going on."""
        self.doing, start = doing, clock.monotonic()
        yield
        self.seconds[doing] = round(clock.monotonic() - start, 3)


def main(argv: list[str]) -> int:
    """Run one rank and return its exit code: 0 when it measured, whatever the verdict; else that of the error."""
    log.configure()
    folder, progress = JobFolder(Path(argv[1])), Progress()
    place = rank_place()
    _forget_earlier(folder, place)
    try:
        run = read_run(folder.run_file)
        _start_watchdog(run.slurm.fabric_minutes * 60 * 0.9, place, folder, progress)
        take_part(run, place, master(), folder, progress)
    except SteelrailError as error:
        return _give_up(error, error.exit_code, place, folder, progress)
    except Exception as error:  # noqa: BLE001  (the last place where this process can say what happened)
        return _give_up(error, FabricError.exit_code, place, folder, progress)
    return 0


def _forget_earlier(folder: JobFolder, place: RankPlace) -> None:
    """A requeued job starts in the folder of its first try: what stands there must not pass for this one's."""
    folder.error(place.rank).unlink(missing_ok=True)
    if place.rank == 0:
        folder.report.unlink(missing_ok=True)


def read_run(path: Path) -> Run:
    """Return the resolved configuration that ``launch`` wrote. Raises ``FabricError`` when it is not there."""
    try:
        return Run.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        fault = " ".join(str(error).split())[:200]
        raise FabricError(must("run.json", "a resolved run", f"not ({fault})", path, "submit the job anew")) from error


def take_part(run: Run, place: RankPlace, at: Master, folder: JobFolder, progress: Progress) -> None:
    """Meet the other ranks, measure, and on rank 0 write the report."""
    started = clock.now()
    device = pick_device(run, place)
    with progress.part("meet"):
        _ask_nccl_to_say(folder, place, device)
        _join(place, at, device)
    with progress.part("health"):
        fact = _own_fact(run, place, device)
        everyone = gather_records(fact, _FACT, device)
    world = World(place, device, tuple(one.host for one in everyone), clock.monotonic, run.fabric, _BUDGET_SECONDS)
    with progress.part("pairs"):
        pairs = measure_pairs(world)
    with progress.part("collectives"):
        measured = _measure_messages(run, world)
    with progress.part("leave"):
        dist.barrier()
        dist.destroy_process_group()
    if place.rank == 0:
        _write(_facts(run, everyone, pairs, measured, started, progress, folder), run, folder)


def pick_device(run: Run, place: RankPlace) -> torch.device:
    """Return this rank's device and make it current. Raises ``FabricError`` when the node has too few GPUs."""
    if run.shape.device == "cpu":
        torch.set_num_threads(1)
        return torch.device("cpu")
    count = torch.cuda.device_count()
    # Slurm may show each rank its own GPU alone.
    index = place.local_rank if count > 1 else 0
    if count == 0 or (index >= count) or (count == 1 and place.ranks_per_node > 1 and not _bound_by_slurm()):
        needed = f"at least {place.ranks_per_node}"
        raise FabricError(
            must("GPUs that torch sees", needed, count, place.host, "check the driver and the node's GRES")
        )
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def _bound_by_slurm() -> bool:
    return "CUDA_VISIBLE_DEVICES" in os.environ


def _join(place: RankPlace, at: Master, device: torch.device) -> None:
    """Meet at the master's store, naming who is absent, then make the process group."""
    store = TCPStore(
        at.address, at.port, place.world_size, place.rank == 0, timedelta(seconds=_MEET_SECONDS), wait_for_workers=False
    )
    store.set(f"here/{place.rank}", place.host)
    _wait_for_all(store, place)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        store=PrefixStore("fabric", store),
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=_COLLECTIVE_SECONDS),
        device_id=device if device.type == "cuda" else None,
    )
    # NCCL wants a collective of all ranks before any exchange of two.
    dist.all_reduce(torch.zeros(1, device=device))


def _wait_for_all(store: TCPStore, place: RankPlace) -> None:
    names = [f"here/{rank}" for rank in range(place.world_size)]
    try:
        store.wait(names, timedelta(seconds=_MEET_SECONDS))
    except (dist.DistStoreError, RuntimeError) as error:
        absent = [rank for rank, name in enumerate(names) if not store.check([name])]
        nodes = sorted({rank // place.ranks_per_node for rank in absent})
        text = f"without ranks {absent[:16]} of nodes {nodes} (as the job numbers them)"
        where = f"after {_MEET_SECONDS:.0f} s"
        raise FabricError(
            must("the ranks", "complete", text, where, "look at those nodes' logs, or exclude them")
        ) from error


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


def _give_up(error: Exception, exit_code: int, place: RankPlace, folder: JobFolder, progress: Progress) -> int:
    _log.exception("rank %d on %s failed (%s)", place.rank, place.host, progress.doing)
    _say(place, folder, progress, type(error).__name__, " ".join(str(error).split())[:2000])
    sys.stderr.flush()
    # A rank left in a collective would keep Python from ending.
    os._exit(exit_code)


def _start_watchdog(limit_seconds: float, place: RankPlace, folder: JobFolder, progress: Progress) -> None:
    """End this process when the job's time is nearly over, saying what it was doing."""

    def end() -> None:
        _say(place, folder, progress, "TimeoutError", f"not done after {limit_seconds:.0f} s")
        os._exit(FabricError.exit_code)

    timer = threading.Timer(limit_seconds, end)
    timer.daemon = True
    timer.start()


def _say(place: RankPlace, folder: JobFolder, progress: Progress, kind: str, message: str) -> None:
    fault = RankError(rank=place.rank, host=place.host, kind=kind, message=message, doing=progress.doing)
    write_artifact(folder.error(place.rank), fault)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
