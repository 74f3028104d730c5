"""Timed messages over the process group: pairs of nodes, pairs of GPUs, the world. NCCL or gloo, the same code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

from steelrail.artifacts.fabric import Measurement, PairMeasurement
from steelrail.clients.ranks import RankPlace
from steelrail.config.schema import Fabric
from steelrail.fabric.collectives import all_gather, reduce_scatter
from steelrail.fabric.gather import gather_numbers, gather_records
from steelrail.fabric.pairs import better, link_ratio, suspects
from steelrail.fabric.schedule import partner, percentile, repeats_within, tournament
from steelrail.fabric.sizes import Message, algbw_gb_per_s, busbw_gb_per_s
from steelrail.fabric.timing import Clock, time_each

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_PAIRS = TypeAdapter(list[PairMeasurement])
_TILE = 251
_CONFIRMATIONS = 3
# Two ends' names, and their ranks.
Meeting = tuple[str, str, int, int]


@dataclass(frozen=True)
class World:
    """What measuring needs: this rank, its device, all ranks' hosts (by rank), clock, thresholds, seconds to spend."""

    place: RankPlace
    device: torch.device
    hosts: tuple[str, ...]
    clock: Clock
    settings: Fabric
    budget_seconds: float


@dataclass(frozen=True)
class Players:
    """Who takes part in one tournament: names and ranks, in one order on all ranks."""

    names: tuple[str, ...]
    ranks: tuple[int, ...]
    rail: int


def node_players(hosts: tuple[str, ...], local_rank: int) -> Players:
    """Return one rank of each node, that of ``local_rank``: they meet on one rail."""
    ranks = [_ranks_of(hosts, host)[local_rank] for host in dict.fromkeys(hosts)]
    return Players(tuple(dict.fromkeys(hosts)), tuple(ranks), local_rank)


def gpu_players(hosts: tuple[str, ...], host: str) -> Players:
    """Return all ranks of one node, as ``host/gpu0`` and so on."""
    ranks = _ranks_of(hosts, host)
    return Players(tuple(f"{host}/gpu{index}" for index in range(len(ranks))), ranks, 0)


def measure_pairs(world: World) -> tuple[PairMeasurement, ...]:
    """Return the exchanges between all nodes; on GPUs every rail, and the pairs inside each node too.

    Disjoint pairs run at once. Pairs that look slow are measured again alone, and the best time counts.
    """
    own: list[PairMeasurement] = []
    on_gpus, single = world.device.type == "cuda", world.place.num_nodes == 1
    if not single:
        own += _play(node_players(world.hosts, world.place.local_rank if on_gpus else 0), world)
    if single or on_gpus:
        own += _play(gpu_players(world.hosts, world.place.host), world)
    pairs = _shared(own, world.device)
    return _confirm(pairs, world)


def measure_world(world: World, messages: Iterable[Message], library: str) -> tuple[Measurement, ...]:
    """Return the whole-world collectives at the model's own sizes; times are those of the slowest rank."""
    wanted = tuple(messages)
    return tuple(_measure_message(message, world, world.budget_seconds / len(wanted), library) for message in wanted)


def exchange(peer: int, size_bytes: int, device: torch.device) -> tuple[Callable[[], None], Callable[[], bool]]:
    """Return work that sends ``size_bytes`` to a rank while it receives as many, and a check of what came last."""
    sent, received = (
        _pattern(dist.get_rank(), size_bytes, device),
        torch.zeros(size_bytes, dtype=torch.uint8, device=device),
    )

    def work() -> None:
        both = [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, received, peer)]
        for request in dist.batch_isend_irecv(both):
            request.wait()

    return work, lambda: bool(torch.equal(received, _pattern(peer, size_bytes, device)))


def collective(message: Message, device: torch.device, num_ranks: int) -> Callable[[], object]:
    """Return work that does the message once over the world."""
    whole = torch.ones(message.num_items, dtype=_DTYPES[message.dtype], device=device)
    if message.collective == "all_reduce":
        return lambda: dist.all_reduce(whole)
    part = torch.ones(message.num_items // num_ranks, dtype=whole.dtype, device=device)
    if message.collective == "all_gather":
        return lambda: all_gather(whole, part)
    return lambda: reduce_scatter(part, whole)


def _play(players: Players, world: World) -> list[PairMeasurement]:
    """Take part in a tournament, or look on. Only the lower rank of a pair keeps the result."""
    me = players.ranks.index(world.place.rank) if world.place.rank in players.ranks else None
    rounds = tournament(len(players.ranks))
    results = []
    for meetings in rounds:
        other = None if me is None else partner(meetings, me)
        if me is not None and other is not None:
            low, high = min(me, other), max(me, other)
            meeting = (players.names[low], players.names[high], players.ranks[low], players.ranks[high])
            results += _meet(meeting, players.rail, world, world.budget_seconds / len(rounds))
        # Else a slow node falls behind by every round, and those that wait for it at the end give up.
        dist.barrier()
    return results


def _meet(meeting: Meeting, rail: int, world: World, budget_seconds: float) -> list[PairMeasurement]:
    """Exchange with the other rank of a meeting; return its measurement on the lower rank, nothing on the higher."""
    first, second, low, high = meeting
    peer, size = low + high - world.place.rank, world.settings.pair_bytes
    work, is_intact = exchange(peer, size, world.device)
    repeats = _agreed_repeats(work, peer, world, budget_seconds)
    seconds = time_each(work, repeats, world.device, world.clock, _nothing)
    mine = [percentile(seconds, 50), percentile(seconds, 99), float(is_intact())]
    theirs = _swap(mine, peer, world.device)
    if world.place.rank != low:
        return []
    p50, p99 = max(mine[0], theirs[0]), max(mine[1], theirs[1])
    return [
        PairMeasurement(
            first=first, second=second, size_bytes=size, gb_per_s=algbw_gb_per_s(size, p50), seconds_p50=p50,
            seconds_p99=p99, rail=rail, intact=bool(mine[2] and theirs[2]),
        )
    ]  # fmt: skip


def _agreed_repeats(work: Callable[[], None], peer: int, world: World, budget_seconds: float) -> int:
    """Warm up, time one exchange, and agree with the peer on how many more fit the budget."""
    work()
    once = time_each(work, 1, world.device, world.clock, _nothing)[0]
    slower = max(once, _swap([once], peer, world.device)[0])
    return repeats_within(slower, world.settings.repeats, budget_seconds)


def _swap(numbers: list[float], peer: int, device: torch.device) -> list[float]:
    mine = torch.tensor(numbers, dtype=torch.float64, device=device)
    theirs = torch.empty_like(mine)
    for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)]):
        request.wait()
    return [float(number) for number in theirs.cpu()]


def _confirm(pairs: tuple[PairMeasurement, ...], world: World) -> tuple[PairMeasurement, ...]:
    """Measure what looks slow again, one pair at a time and a few times over; the best time counts."""
    ratio = link_ratio(world.settings.slow_ratio, world.device.type)
    for _ in range(_CONFIRMATIONS):
        doubted = suspects(pairs, ratio)
        if not doubted:
            break
        again = {_key(pair): pair for pair in _measure_alone(doubted, world)}
        pairs = tuple(better(pair, again.get(_key(pair), pair)) for pair in pairs)
    return pairs


def _measure_alone(pairs: tuple[PairMeasurement, ...], world: World) -> tuple[PairMeasurement, ...]:
    """All ranks know whose turn it is, and wait."""
    own: list[PairMeasurement] = []
    for pair in pairs:
        meeting = _meeting_of(pair, world.hosts)
        if world.place.rank in meeting[2:]:
            own += _meet(meeting, pair.rail, world, world.budget_seconds / len(pairs) / _CONFIRMATIONS)
        dist.barrier()
    return _shared(own, world.device)


def _key(pair: PairMeasurement) -> tuple[str, str, int]:
    return pair.first, pair.second, pair.rail


def _meeting_of(pair: PairMeasurement, hosts: tuple[str, ...]) -> Meeting:
    return pair.first, pair.second, _rank_of(pair.first, pair.rail, hosts), _rank_of(pair.second, pair.rail, hosts)


def _rank_of(label: str, rail: int, hosts: tuple[str, ...]) -> int:
    host, _, index = label.partition("/gpu")
    return _ranks_of(hosts, host)[int(index) if index else rail]


def _ranks_of(hosts: tuple[str, ...], host: str) -> tuple[int, ...]:
    return tuple(rank for rank, name in enumerate(hosts) if name == host)


def _shared(own: list[PairMeasurement], device: torch.device) -> tuple[PairMeasurement, ...]:
    everyone = gather_records(own, _PAIRS, device)
    return tuple(pair for records in everyone for pair in records)


def _measure_message(message: Message, world: World, budget_seconds: float, library: str) -> Measurement:
    num_ranks = world.place.world_size
    work, align = collective(message, world.device, num_ranks), _aligner(world.device)
    work()
    once = float(gather_numbers(time_each(work, 1, world.device, world.clock, align), world.device).max())
    repeats = repeats_within(once, world.settings.repeats, budget_seconds)
    seconds = time_each(work, repeats, world.device, world.clock, align)
    slowest = gather_numbers(seconds, world.device).max(dim=0).values.tolist()
    p50 = percentile(slowest, 50)
    return Measurement(
        collective=message.collective,
        size_bytes=message.size_bytes,
        dtype=message.dtype,
        ranks=tuple(range(num_ranks)),
        algorithm="default",
        library=library,
        repeats=repeats,
        seconds_p50=p50,
        seconds_p95=percentile(slowest, 95),
        seconds_p99=percentile(slowest, 99),
        busbw_gb_per_s=busbw_gb_per_s(message.collective, message.size_bytes, p50, num_ranks),
        what=message.what,
    )


def _aligner(device: torch.device) -> Callable[[], object]:
    """Return a tiny all-reduce: ranks then start a timed message together. On a GPU the host does not wait for it."""
    tiny = torch.zeros(1, device=device)
    return lambda: dist.all_reduce(tiny)


def _nothing() -> None:
    """An exchange aligns its own two ranks."""


def _pattern(rank: int, size_bytes: int, device: torch.device) -> torch.Tensor:
    """Return bytes that tell their sender: 0, 1 .. 250 turned by the rank, repeated."""
    tile = ((torch.arange(_TILE, device=device) + 17 * rank) % _TILE).to(torch.uint8)
    return tile.repeat(-(-size_bytes // _TILE))[:size_bytes].contiguous()
