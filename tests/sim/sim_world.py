"""One seed's world: attempts on ranks with NVMe, one after the other, stale ones among them, against one store.

What runs is the real code of ``checkpoints`` and ``clients.store``, threads and all. Played are time, threads, the
ranks' process group, the S3 server, and torch's own files: a rank's file is a line of text.
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import BrokenPromiseError, Content, Oracle
from sim_clock import Group, Killed, Process, Sim, sim_dist
from sim_store import Server, SimStore

from steelrail.checkpoints import agree, buddy, fence, restore, save, saving, upload
from steelrail.checkpoints.edge import Checkpoints
from steelrail.checkpoints.layout import METADATA, StepId, local_root
from steelrail.checkpoints.lineage import Rollback, left_out
from steelrail.checkpoints.manifest import Manifest
from steelrail.checkpoints.peers import Peers, found
from steelrail.checkpoints.place import Home
from steelrail.clients import clock, parallel, peers, store_transfer
from steelrail.clients.disk import on_disk
from steelrail.clients.peers import Peer, PeerError
from steelrail.clients.ranks import RankPlace
from steelrail.config import schema
from steelrail.errors import CheckpointError, SteelrailError, must
from steelrail.train.history import rolled_back_to

HOSTS = 4
EVERY = 2
TIMEOUT_SECONDS = 300.0
THREADED = (upload, saving, buddy)


@dataclass(eq=False)
class World:
    """Everything of one seed. ``deaf_from``: from when on no peer answers, in this attempt.

    ``luck`` alone decides of bad steps: a world without them plays as if there were none in any. ``bad_luck``: how
    likely an attempt is to meet one.
    """

    rng: random.Random
    sim: Sim
    server: Server
    oracle: Oracle
    nvme: Path
    store: SimStore
    luck: random.Random
    bad_luck: float
    past: dict[int, dict[int, str]] = field(default_factory=dict)
    tally: Counter[str] = field(default_factory=Counter)
    processes: list[Process] = field(default_factory=list)
    restoring: list[Process] = field(default_factory=list)
    deaf_from: float = math.inf

    @property
    def rolls_back(self) -> bool:
        """Whether a bad step is rolled back in this world."""
        return self.oracle.bad_step.policy == "roll_back"


@dataclass(frozen=True)
class Plan:
    """What an attempt does when nothing stops it: so many steps, the ``bad_after``-th of them bad (0: none)."""

    steps: int
    bad_after: int


_world: World | None = None


def world() -> World:
    """Return the world that is being played."""
    assert _world is not None
    return _world


def make_world(seed: int, nvme: Path) -> World:
    """Return the world of a seed."""
    rng = random.Random(seed)
    random.seed(seed)  # the store's jitter takes the module's own
    sim = Sim(rng)
    rate, crash, stop = (
        rng.choice((0.0, 0.02, 0.1, 0.3)),
        rng.choice((0.0, 0.001, 0.005)),
        rng.choice((0.0, 0.005, 0.02)),
    )
    server = Server(sim, rate, crash, stop)
    luck = random.Random(f"bad steps of {seed}")
    oracle = Oracle(server, rotten=rng.random() < 0.15, bad_step=bad_step_settings(luck))
    server.heed = oracle.heed
    return World(rng, sim, server, oracle, nvme, SimStore(server), luck, luck.choice((0.3, 0.6, 0.9)))


def bad_step_settings(luck: random.Random) -> schema.BadStep:
    """Return what a world does at a bad step."""
    if luck.random() < 0.5:
        return schema.BadStep()
    back, limit = luck.choice((0, 1, 2, 3, 5)), luck.choice((1, 2, 10))
    leave_out = luck.randint(1, back + 1)
    return schema.BadStep(policy="roll_back", limit=limit, back_steps=back, leave_out_steps=leave_out)


def play(seed: int, nvme: Path) -> World:
    """Play a seed to its end. Raises ``BrokenPromiseError`` or ``HangError``."""
    global _world
    _world = made = make_world(seed, nvme)
    for module in THREADED:
        module.threading = made.sim.threading()  # type: ignore[attr-defined]
    driver = made.sim.start(Process("driver"), lambda: drive(made))
    try:
        made.sim.run(lambda: driver.done)
    finally:
        made.sim.end()
        _world = None
    return made


def drive(made: World) -> None:
    """Let attempts follow one another, and at last one that nothing disturbs, on empty nodes."""
    for _ in range(made.rng.choice((2, 3, 3, 4)) + (made.luck.choice((0, 1, 2, 3)) if made.rolls_back else 0)):
        made.server.starved = made.rng.random() < 0.3
        made.deaf_from = made.sim.now + 6 * made.rng.random() if made.rng.random() < 0.3 else math.inf
        one_attempt(made)
        if made.rng.random() < 0.2:
            lose_host(made, made.rng.randrange(HOSTS))
        if made.oracle.rotten:
            rot(made)
    # Whoever is stopped wakes up now, or never.
    made.sim.pause(made.rng.choice((0.0, 100.0, 400.0)))
    for process in made.processes:
        process.dead = True
    made.sim.pause(100.0)
    made.server.rate = made.server.crash = made.server.stop = made.server.away_until = 0.0
    made.deaf_from = math.inf
    reader_without_a_node(made)
    made.server.starved = False
    for host in range(HOSTS):
        lose_host(made, host)
    last_reader(made)


def lose_host(made: World, host: int) -> None:
    """A host is gone with all that ran there; it comes back with an empty disk."""
    for process in made.processes:
        process.dead = process.dead or process.host == host
    made.sim.pause(0.0)
    made.oracle.host_lost(host)
    shutil.rmtree(made.nvme / f"host{host}", ignore_errors=True)


def reader_without_a_node(made: World) -> None:
    """What a fresh attempt finds on all nodes but one of those that hold the newest save there twice, and a spare."""
    oracle = made.oracle
    old_enough = [which for which in oracle.twice if which.step <= oracle.rolls.allowed() and oracle.counts(which)]
    whole = [which for which in old_enough if len(oracle.twice[which].hosts) == oracle.twice[which].size]
    if not whole:
        return
    which = max(whole)
    lost, *left = made.rng.sample(sorted(oracle.twice[which].hosts), oracle.twice[which].size)
    lose_host(made, lost)
    spare = made.rng.choice([host for host in range(HOSTS) if host not in left])
    hosts = made.rng.sample([*left, spare], len(left) + 1)
    ended = one_attempt(made, quiet=True, hosts=hosts)
    if not oracle.rotten:
        kept = ended.get("step", 0) >= which.step
        oracle.require("a save that is there twice is found without a node and the store", kept, f"{which}: {ended}")


def last_reader(made: World) -> None:
    """What a fresh attempt finds in the store, once all is quiet."""
    oracle, bound = made.oracle, made.oracle.rolls.allowed()
    newest, acked_step = oracle.newest(bound), oracle.acked_step(bound)
    ever = [which for which in oracle.ever_acked if which.step <= bound and oracle.counts(which)]
    ended = one_attempt(made, quiet=True)
    step = ended.get("step")
    if newest is not None:
        kept = step is not None and step >= newest.step
        oracle.require("the newest in the store is found again", kept, f"{step}, not {newest}: {ended}")
    if acked_step and not oracle.rotten:
        kept = step is not None and step >= acked_step
        oracle.require("no acknowledged checkpoint is lost", kept, f"{step} after {acked_step}: {ended}")
    if acked_step:
        oracle.require("a run with checkpoints never starts over", step != 0, f"{ended}")
    if ever and not oracle.rotten:
        oracle.require("there is always something to go back to", bool(step), f"{ended}, of {ever} and {bound}")


def one_attempt(made: World, quiet: bool = False, hosts: list[int] | None = None) -> dict[str, Any]:
    """Claim the fence, run the ranks until they end or are given up. Returns what the attempt said of itself."""
    said: dict[str, Any] = {}
    launcher = Process("launcher")
    claiming = made.sim.start(launcher, lambda: said.update(epoch=claim(made)))
    if not quiet and made.rng.random() < 0.2:
        # A second launcher by mistake, whose attempt comes no further.
        made.sim.start(Process("rival"), lambda: claim(made))
    made.sim.wait(lambda: claiming.done)
    if said.get("epoch") is None:
        return said
    hosts = hosts or made.rng.sample(range(HOSTS), made.rng.choice((1, 2, 2, 3)))
    nodes = len(hosts)
    group, plan = Group(made.sim, nodes), plan_of(made, quiet)
    for rank in range(nodes):
        process = Process(f"rank{rank}", hosts[rank], said["epoch"])
        group.members.append(process)
    made.processes += group.members
    for rank, process in enumerate(group.members):
        place = RankPlace(rank, nodes, 0, rank, nodes, f"host{hosts[rank]}")
        made.sim.start(process, lambda place=place, process=process: one_rank(made, process, place, group, plan, said))
    oversee(made, group.members, quiet)
    return said


def plan_of(made: World, quiet: bool) -> Plan:
    """Return what an attempt does."""
    steps = EVERY * made.rng.choice((1, 2, 3))
    bad = made.rolls_back and not quiet and made.luck.random() < made.bad_luck
    return Plan(steps, made.luck.randint(1, steps) if bad else 0)


def claim(made: World) -> int | None:
    """Claim the fence as the launcher does."""
    before = max(made.oracle.claims, default=0)
    try:
        epoch = fence.claim(made.store, "run", "key")
    except SteelrailError:
        made.tally["failed claims"] += 1
        return None
    made.oracle.claimed(epoch, before)
    return epoch


def oversee(made: World, members: list[Process], quiet: bool) -> None:
    """Wait for the ranks' end. One that dies takes the others along, as ``srun`` does; some attempts are given up."""
    rng, sim = made.rng, made.sim
    patience = None if quiet or rng.random() < 0.6 else rng.choice((1.0, 5.0, 20.0)) * 2 * rng.random()
    if not quiet and rng.random() < 0.15:
        made.server.away_until = sim.now + 200 * rng.random()
    sim.wait(lambda: any(one.dead or one.frozen_until > sim.now for one in members), patience)
    if not any(one.dead for one in members):
        give_up(made, members)
        return
    sim.wait(lambda: all(one.dead for one in members), 5.0 if quiet else rng.choice((0.1, 5.0)))
    for one in members:
        one.dead = True


def give_up(made: World, members: list[Process]) -> None:
    """Leave an attempt behind: stopped for a while, still running, or ended by a signal."""
    how = made.rng.choice(("stopped", "running", "running", "killed"))
    made.tally[f"left behind {how}"] += 1
    for one in members:
        if how == "killed":
            one.dead = True
        elif how == "stopped":
            one.frozen_until = max(one.frozen_until, made.sim.now + made.rng.choice((2.0, 20.0, 200.0)))


def one_rank(made: World, process: Process, place: RankPlace, group: Group, plan: Plan, said: dict[str, Any]) -> None:
    """Live as a rank does: restore, train and save, flush, and be gone with all threads."""
    try:
        attempt(made, process, place, group, plan, said)
    except (SteelrailError, RuntimeError) as error:
        made.tally[f"ended by {type(error).__name__}"] += 1
        said[f"error {place.rank}"] = f"{error}"
    process.dead = True


def attempt(made: World, process: Process, place: RankPlace, group: Group, plan: Plan, said: dict[str, Any]) -> None:
    """Restore, train and save, flush."""
    root = local_root(made.nvme / f"host{process.host}", "run", "key")
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings = schema.Checkpoints(every_steps=EVERY, keep_last=1 + process.epoch % 2)
    home = Home(made.store, "run", "key", process.epoch, root, settings, bad_step=made.oracle.bad_step)
    hosts = [one.host for one in group.members]
    nodes = tuple(Peer(f"host{host}", f"{process.epoch}", host) for host in hosts)
    met = Peers(place.rank, nodes, b"") if len(nodes) > 1 else None
    checkpoints = Checkpoints(home, agree.Ranks(place, group), note, TIMEOUT_SECONDS, met)  # type: ignore[arg-type]
    held = held_steps(made, process, hosts)
    made.past.setdefault(process.epoch, dict(made.oracle.base))
    if place.rank == 0:
        made.oracle.looks(process.epoch)
    rollbacks = rollbacks_told(made, process, checkpoints, said)
    state = {f"rank{place.rank}": torch.zeros(1)}
    made.restoring.append(process)
    try:
        found = checkpoints.restore(state, 0, rollbacks)
    except CheckpointError:
        made.oracle.held_restored(process.epoch, 0, held, held_steps(made, process, hosts))
        raise
    made.restoring.remove(process)
    name, step = (str(found.extra["name"]), found.step) if found else ("", 0)
    if process.epoch == made.oracle.newest_claim and place.rank == 0:
        made.oracle.held_restored(process.epoch, step, held, held_steps(made, process, hosts))
        made.oracle.restored(process.epoch, step, name)
    said.setdefault("step", step)
    made.oracle.require("all ranks resume from the same checkpoint", said["step"] == step, f"{said}, {step}")
    bad = bad_step(made, plan, step, rollbacks)
    for number in range(step + 1, step + plan.steps + 1):
        made.sim.pause(made.rng.choice((0.1, 2.0)) * made.rng.random())
        if number == bad:
            roll_back(made, process, place, checkpoints, number)
            break
        if number % EVERY == 0:
            grown = Content(f"s{number}e{process.epoch}", process.epoch, number, name)
            name = made.oracle.contents.setdefault(grown.name, grown).name
            checkpoints.save(state, number, number, {"name": name})
    checkpoints.flush(60.0)
    checkpoints.close()


def rollbacks_told(
    made: World, process: Process, checkpoints: Checkpoints, said: dict[str, Any]
) -> tuple[Rollback, ...]:
    """Return what an attempt is told of bad steps before it; a run that does not roll back does not ask."""
    if not made.rolls_back:
        return ()
    told = checkpoints.rollbacks()
    made.oracle.rolls.knows(process.epoch, told)
    said.setdefault("rollbacks", told)
    made.oracle.require("all ranks know of the same roll backs", said["rollbacks"] == told, f"{said}, {told}")
    return told


def bad_step(made: World, plan: Plan, start: int, rollbacks: tuple[Rollback, ...]) -> int:
    """Return which step an attempt finds bad and rolls back; 0 when none: steps that are left out are not judged."""
    bad = start + plan.bad_after if plan.bad_after else 0
    return 0 if bad in left_out(rollbacks) or len(rollbacks) >= made.oracle.bad_step.limit else bad


def roll_back(made: World, process: Process, place: RankPlace, checkpoints: Checkpoints, step: int) -> None:
    """Decide at a bad step what the trainer decides there."""
    oracle = made.oracle
    at_most, first = rolled_back_to(oracle.bad_step, step)
    if place.rank == 0:
        decided = Rollback(process.epoch, step, at_most, first, "loss")
        oracle.rolls.meets(decided, made.server.mutations, oracle.newest_claim > process.epoch)
        made.tally["met a bad step"] += 1
    checkpoints.roll_back(step, at_most, first, "loss")
    oracle.rolls.ends(process.epoch)
    made.tally["rolled back"] += place.rank == 0


def held_steps(made: World, process: Process, hosts: list[int]) -> frozenset[int]:
    """Return the steps that an attempt must find on its nodes; none beside one that may be removing them."""
    others = [one for one in made.processes if one.epoch != process.epoch and one.host in hosts and not one.dead]
    if others or process.epoch != made.oracle.newest_claim:
        return frozenset()
    return made.oracle.held_steps(process.epoch, frozenset(hosts))


def note(kind: str, **data: Any) -> None:
    """Take an event; all but one are counted and forgotten."""
    made = world()
    made.tally[f"{kind} {data.get('where', '')}".strip()] += 1
    if kind == "copied":
        process = made.sim.process
        hosts = frozenset(one.host for one in made.processes if one.epoch == process.epoch)
        made.oracle.copied(StepId(data["step"], data["epoch"]), process, hosts)


def receive(peer: Peer, secret: bytes, name: str, size_bytes: int) -> Iterator[memoryview]:
    """Stand in for a peer's answer: it is gone, or slow, or what it sends is damaged on the way."""
    made = world()
    rng, sim, faults = made.rng, made.sim, made.server.faults
    sim.pause(rng.random() * 0.05)
    made.server._maybe_crash(sim.process)
    asked = [one for one in made.processes if (one.host, one.epoch) == (peer.port, int(peer.address))]
    gone = sim.now > made.deaf_from or any(one.dead or one.frozen_until > sim.now for one in asked)
    if gone or rng.random() < made.server.rate:
        faults["peer away"] += 1
        sim.pause(rng.choice((0.0, 10.0, 30.0)))
        raise PeerError(f"{peer.host} is away")
    path = found(local_root(made.nvme / peer.host, "run", "key"), name)
    data = path.read_bytes() if path is not None and path.is_file() else b""
    if len(data) != size_bytes:
        return
    if rng.random() < made.server.rate / 3:
        faults["peer damaged"] += 1
        data = damaged(rng, data)
    yield memoryview(data[: len(data) // 2])
    disk_pause()
    yield memoryview(data[len(data) // 2 :])


def rot(made: World) -> None:
    """Damage one file on NVMe or in the store: half of it, or one byte.

    Not on NVMe while a rank restores: it proves its files and reads them right after, and what rots between is not what
    a digest is for (seed 6,540 without this line).
    """
    still = all(process.dead for process in made.restoring)
    paths = [path for path in made.nvme.rglob("*") if path.is_file() and still]
    keys = [key for key in made.server.objects if "/steps/" in key]
    if keys and made.rng.random() < 0.5:
        key = made.rng.choice(sorted(keys))
        made.server.objects[key] = damaged(made.rng, made.server.objects[key])
    elif paths:
        path = made.rng.choice(sorted(paths))
        path.write_bytes(damaged(made.rng, path.read_bytes()))
    made.server.faults["rot"] += 1


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Return half of ``data``, or all of it with one byte changed."""
    if rng.random() < 0.5 or not data:
        return data[: len(data) // 2]
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def disk_pause() -> None:
    """Let a write to NVMe take a while, in which its process may die."""
    made = world()
    made.sim.pause(made.rng.random() * 0.02)
    made.server._maybe_crash(made.sim.process)


def write_tensors(folder: Path, state: Any, ranks: agree.Ranks) -> None:
    """Stand in for torch's save: one file a rank, and the list of them. A crash leaves half a file."""
    rank, size = ranks.place.rank, ranks.place.world_size
    # The file says which state it is of; the saving rank's manifest says so too, and ``load`` compares.
    text = f"rank {rank} of {folder.name} " + "x" * world().rng.choice((4, 60))
    path = folder / f"__{rank}_0.distcp"
    path.write_text(text[: len(text) // 2])
    disk_pause()
    path.write_text(text)
    if rank == 0:
        (folder / METADATA).write_text(json.dumps([f"__{one}_0.distcp" for one in range(size)]))
    ranks.agree(lambda: None)


def read_metadata(data: bytes, names: Any, where: str) -> list[str]:
    """Stand in for torch's metadata: the files' names."""
    found: list[str] = json.loads(data)
    if not set(found) <= set(names):
        raise CheckpointError(must(".metadata", "of this manifest", f"{found}", where, "an older one is taken"))
    return found


def files_needed(state: Any, metadata: list[str]) -> set[str]:
    """A rank needs its own file, or all of them when the world has another size."""
    own = f"__{next(iter(state)).removeprefix('rank')}_0.distcp"
    size = len([one for one in world().processes if one.epoch == world().sim.process.epoch])
    return {own} if size == len(metadata) else set(metadata)


def load(home: Home, ranks: agree.Ranks, state: Any, manifest: Manifest, metadata: list[str]) -> None:
    """Stand in for torch's load: every byte that is read must be what was saved."""
    oracle, name = world().oracle, str(manifest.extra["name"])
    made_by = oracle.contents[name]
    for file in files_needed(state, metadata):
        path = home.folder(manifest.id) / file
        with on_disk(path):  # a stale attempt on the same node may be removing it
            text = path.read_text(errors="replace")
        rank = file.removeprefix("__").split("_")[0]
        whole = f"rank {rank} of {StepId(made_by.step, made_by.epoch).folder} "
        kept = text.startswith(whole) and set(text[len(whole) :]) == {"x"} and len(text) - len(whole) in (4, 60)
        oracle.require("what is read is whole and of this checkpoint", kept, f"{name}: {text}")
    oracle.rolls.old_enough(home.epoch, made_by.step)
    if world().sim.process.epoch == oracle.newest_claim:
        oracle.of_the_past(home.epoch, name, world().past[home.epoch])
        oracle.rolls.never_again(home.epoch, name, made_by.epoch, made_by.step)


def commit_local(ranks: agree.Ranks, folder: Path, manifest: Manifest, real: Callable[..., None]) -> None:
    """The real one, between two moments at which the process may die."""
    world().oracle.held[manifest.id] = str(manifest.extra["name"])
    disk_pause()
    real(ranks, folder, manifest)
    disk_pause()


@contextmanager
def simulated() -> Iterator[pytest.MonkeyPatch]:
    """Put the played parts in place of the real ones."""
    real = save.commit_local

    def committed(ranks: agree.Ranks, folder: Path, manifest: Manifest) -> None:
        commit_local(ranks, folder, manifest, real)

    with pytest.MonkeyPatch.context() as patch:
        for module in THREADED:
            patch.setattr(module, "threading", None)
        patch.setattr(peers, "receive", receive)
        patch.setattr(agree, "dist", sim_dist())
        for module in (save, restore):
            patch.setattr(module, "commit_local", committed)
        patch.setattr(save, "_write_tensors", write_tensors)
        patch.setattr(restore, "read_metadata", read_metadata)
        patch.setattr(restore, "files_needed", files_needed)
        patch.setattr(restore, "_load", load)
        patch.setattr(clock, "monotonic", lambda: world().sim.now)
        patch.setattr(clock, "now", lambda: world().sim.now)
        patch.setattr(clock, "sleep", lambda seconds: world().sim.pause(seconds))
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(store_transfer, "PART_BYTES", 64)
        patch.setattr(parallel, "in_parallel", lambda work, items, *how: [work(item) for item in items])
        logging.disable(logging.CRITICAL)
        try:
            yield patch
        finally:
            logging.disable(logging.NOTSET)


def run_seeds(seeds: range, nvme: Path) -> Counter[str]:
    """Play the seeds and return what happened in all. The first broken promise names its seed."""
    total: Counter[str] = Counter()
    for seed in seeds:
        try:
            made = play(seed, nvme)
        except (Exception, BrokenPromiseError) as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        finally:
            shutil.rmtree(nvme, ignore_errors=True)
        total += summary(made)
    return total


def summary(made: World) -> Counter[str]:
    """What happened in one seed."""
    counts = Counter(seeds=1, commits=made.oracle.commits, stale_commits=made.oracle.void_commits)
    counts.update({f"fault: {kind}": number for kind, number in made.server.faults.items()})
    counts.update({f"checked: {promise}": number for promise, number in made.oracle.checked.items()})
    counts.update({f"attempts: {kind}": number for kind, number in made.tally.items()})
    return counts


__all__ = ["Killed", "run_seeds", "simulated"]
