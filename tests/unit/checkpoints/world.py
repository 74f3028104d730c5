"""Runs attempts of a tiny FSDP2 model on real gloo ranks, for the tests beside it: ``python world.py``.

Reads one attempt a line (JSON) from standard input, forks its ranks, answers with one line. torch is imported once.
Two ranks make a node; each node has an NVMe folder of its own.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch._dynamo  # imported once here, not by every rank when it shards
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from steelrail.checkpoints import bring, buddy, edge, fence, restore, save, upload
from steelrail.checkpoints.edge import Checkpoints, open_checkpoints
from steelrail.clients import peers
from steelrail.clients.ranks import RankPlace
from steelrail.clients.store import Store
from steelrail.config import schema
from steelrail.errors import SteelrailError, StoreError
from steelrail.launch import rank_train
from steelrail.train.context import Outcome

WIDTH, BATCH, RANKS_PER_NODE = 12, 8, 2
upload.REPEAT_SECONDS = 0.1
upload.RECEIPT_POLL_SECONDS = 0.02
buddy.PAUSE_SECONDS = 0.1
edge.BEAT_SECONDS = rank_train._FLUSH_SLICE_SECONDS = 0.2


class Tiny:
    """A model with odd sizes (uneven shards), plain momentum, and data that depend on the step alone."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 7), torch.nn.GELU(), torch.nn.Linear(7, WIDTH))
        fully_shard(self.model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        self.momentum = {name: torch.zeros_like(p) for name, p in self.model.named_parameters()}

    @property
    def state(self) -> dict[str, Any]:
        return {"model": {n: p.detach() for n, p in self.model.named_parameters()}, "momentum": self.momentum}

    def step(self, number: int) -> str:
        rank, size = dist.get_rank(), BATCH // dist.get_world_size()
        batch = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(number))
        loss = (self.model(batch[rank * size : (rank + 1) * size]) - 1).square().mean()
        loss.backward()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                self.momentum[name].mul_(0.9).add_(parameter.grad)
                parameter.sub_(0.1 * self.momentum[name])
                parameter.grad = None
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        return float(whole / dist.get_world_size()).hex()

    def spoil(self) -> None:
        for part in self.state.values():
            for value in part.values():
                (value._local_tensor if isinstance(value, DTensor) else value).fill_(float("nan"))


def break_store(store: Store) -> None:
    def away(*_: object) -> None:
        raise StoreError("the store is away")

    for name in ("put", "put_file", "put_if_absent", "get", "list"):
        setattr(store, name, away)


_WRITE_DATA = save.FolderWriter.write_data


_FULL = list[bool]()


def fill_nvme() -> None:
    """The next file that torch writes meets a full disk; asked for twice before one is written, the next two do."""
    _FULL.append(True)

    def full(self: Any, plan: Any, planner: Any) -> Any:
        _FULL.pop()
        if not _FULL:
            save.FolderWriter.write_data = _WRITE_DATA  # type: ignore[method-assign]
        (Path(self.path) / f"__{dist.get_rank()}_0.distcp").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    save.FolderWriter.write_data = full  # type: ignore[method-assign]


def slow_nvme(seconds: float) -> None:
    def slow(self: Any, plan: Any, planner: Any) -> Any:
        time.sleep(seconds)
        return _WRITE_DATA(self, plan, planner)

    save.FolderWriter.write_data = slow  # type: ignore[method-assign]


def fail_restore(where: str) -> None:
    """This rank has no memory left, or a disk that cannot be asked, at one point of the restore."""

    def fail(*_: object, **__: object) -> Any:
        raise OSError(errno.EIO, "Input/output error") if where == "sha256_file" else MemoryError("no memory left")

    if where == "read_data":
        restore.FolderReader.read_data = fail  # type: ignore[method-assign]
    else:
        setattr(bring if where == "sha256_file" else restore, where, fail)


def last_flush(checkpoints: Checkpoints, lead_seconds: float, steps: int, beat: Callable[..., None], how: str) -> None:
    """End as a rank does, after its last step or after a signal."""
    run = SimpleNamespace(
        slurm=SimpleNamespace(lead_seconds=lead_seconds),
        store=SimpleNamespace(retry_seconds=2.0),
        train=SimpleNamespace(steps=steps),
        node=SimpleNamespace(nvme="nvme"),
    )
    pulse = SimpleNamespace(beat=beat, step=steps, doing="step")
    events, ears = SimpleNamespace(enter=lambda category: None), SimpleNamespace(heard=signal.SIGUSR2)
    rank: Any = SimpleNamespace(run=run, pulse=pulse, events=events, ears=ears, folder=None, attempt=0)
    rank_train._flush(rank, checkpoints, Outcome[how])


def slow_store(store: Store, seconds: float) -> None:
    real = store.put_file

    def slow(key: str, path: Path, threads: int) -> int:
        time.sleep(seconds)
        return real(key, path, threads)

    store.put_file = slow  # type: ignore[method-assign]


def deafen(checkpoints: Checkpoints) -> None:
    """This node answers its peers no more."""
    assert checkpoints._peers is not None
    checkpoints._peers.close()


def garble() -> None:
    """Whatever this process has from a peer changes on the way."""
    real = peers.receive

    def receive(*asked: Any) -> Any:
        for chunk in real(*asked):
            chunk[0] ^= 1
            yield chunk

    peers.receive = receive


def await_copied(checkpoints: Checkpoints, result: dict[str, Any], step: int) -> None:
    """Return when every node that is to copy has said that it did, or that it could not."""

    def over() -> bool:
        copied = any(kind == "copied" and data["step"] == step for kind, data in result["events"])
        return copied or any(
            kind == "note" and f"no second copy of step {step} " in data["text"] for kind, data in result["events"]
        )

    until = time.monotonic() + 20
    while checkpoints._copier is not None and not over() and time.monotonic() < until:
        time.sleep(0.02)
    dist.barrier()


def attempt(rank: int, order: dict[str, Any], result: dict[str, Any]) -> None:
    world, nodes = order["world"], order["nodes"]
    node = rank // RANKS_PER_NODE
    place = RankPlace(rank, world, rank % RANKS_PER_NODE, node, world // RANKS_PER_NODE, f"host{nodes[node]}")
    store = Store.open(schema.Store(**order["store"]))
    settings = schema.Checkpoints(**order.get("settings", {}))

    def emit(kind: str, **data: Any) -> None:
        result["events"].append([kind, data])

    nvme = Path(order["nvme"]) / f"node{nodes[node]}"

    def beat(*_: object) -> None:
        result["beats"] += 1

    checkpoints = open_checkpoints(store, "run", order["key"], order["epoch"], nvme, place, settings, emit, 30.0, beat)
    tiny = Tiny()
    if order.get("spoil"):
        tiny.spoil()
    if order.get("fail_restore", [-1])[0] == rank:
        fail_restore(order["fail_restore"][1])
    if node in order.get("deaf", ()):
        deafen(checkpoints)
    if node in order.get("garble", ()):
        garble()
    found = checkpoints.restore(tiny.state)
    if found is not None:
        fields = dataclasses.asdict(found)
        fields["rank_state"] = found.rank_state.decode() if found.rank_state else None
        result["restored"] = fields
    if order.get("break_store"):
        break_store(store)
    if order.get("slow_store"):
        slow_store(store, order["slow_store"])
    if order.get("slow_nvme", [-1])[0] == rank:
        slow_nvme(order["slow_nvme"][1])
    result["restore_beats"] = result["beats"]
    train(tiny, checkpoints, store, order, result, found.step if found else 0)
    if "last_flush" in order:
        last_flush(checkpoints, order.get("lead", 30), order["steps"], beat, order["last_flush"])
        result["durable"] = checkpoints.newest_durable_step
    checkpoints.close()


def train(
    tiny: Tiny, checkpoints: Checkpoints, store: Store, order: dict[str, Any], result: dict[str, Any], start: int
) -> None:
    for number in range(start + 1, order["steps"] + 1):
        result["losses"][number] = tiny.step(number)
        if order.get("kill") == [dist.get_rank(), number]:
            os.kill(os.getpid(), signal.SIGKILL)
        if number in order.get("saves", ()):
            rank, *steps = order.get("fill_nvme", [-1])
            if rank == dist.get_rank() and number in steps:
                fill_nvme()
            extra = {"number": number, "rate": 0.5, "name": "x"}
            for _ in range(2 if order.get("save_again") else 1):
                checkpoints.save(tiny.state, number, 100 * number, extra, f"state of {dist.get_rank()}".encode())
    if order.get("overtake") and dist.get_rank() == 0:
        fence.claim(store, "run", order["key"])
    if "flush" in order:
        result["flushed"] = checkpoints.flush(order["flush"])
    if "await_copied" in order:
        await_copied(checkpoints, result, order["await_copied"])
    result["durable"] = checkpoints.newest_durable_step
    result["behind"] = checkpoints.behind


def one_rank(rank: int, order: dict[str, Any], folder: Path) -> None:
    torch.set_num_threads(1)
    result: dict[str, Any] = {"losses": {}, "events": [], "restored": None, "beats": 0}
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=order["world"])
    try:
        attempt(rank, order, result)
    except SteelrailError as error:
        result["error"] = [type(error).__name__, str(error)]
        result["culprit"] = getattr(error, "culprit", None)
    (folder / f"{rank}.json").write_text(json.dumps(result))


def fork_rank(rank: int, order: dict[str, Any], folder: Path) -> int:
    child = os.fork()
    if child:
        return child
    try:
        one_rank(rank, order, folder)
        # As a rank ends in life: threads and groups are not waited for.
        os._exit(0)
    except BaseException:  # noqa: BLE001 - a forked child must never run on into its parent's code
        traceback.print_exc()
        os._exit(1)


def await_all(children: list[int]) -> list[int]:
    """Wait for the ranks; the first that ends badly takes the others along, as ``srun --kill-on-bad-exit`` does."""
    codes: dict[int, int] = {}
    while len(codes) < len(children):
        child, status = os.wait()
        codes[child] = os.waitstatus_to_exitcode(status)
        if codes[child] != 0:
            for other in set(children) - codes.keys():
                os.kill(other, signal.SIGKILL)
    return [codes[child] for child in children]


def answer(order: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        children = [fork_rank(rank, order, folder) for rank in range(order["world"])]
        codes = await_all(children)
        files = [folder / f"{rank}.json" for rank in range(order["world"])]
        return {"codes": codes, "ranks": [json.loads(f.read_text()) if f.exists() else None for f in files]}


if __name__ == "__main__":
    assert threading.active_count() == 1
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        out.write(json.dumps(answer(json.loads(line))) + "\n")
        out.flush()
