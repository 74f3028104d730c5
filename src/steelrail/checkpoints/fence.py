"""Fencing: of all attempts that were ever started, only the newest may commit a checkpoint.

A claim is one conditional PUT, so that two attempts never share an epoch. Beside the fence lie what its attempt resumed
from (``lineage``), its first commit (evidence that there were checkpoints, should they ever all be gone), and what it
decided at a bad step.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from steelrail.checkpoints.layout import StepId, fence_name, parse_fence
from steelrail.checkpoints.lineage import Resumed, Rollback
from steelrail.clients import clock
from steelrail.clients.store import Store
from steelrail.errors import BusyError, CheckpointError, StoreError, must

T = TypeVar("T")
MAX_RACES = 100


def claim(store: Store, run: str, key: str) -> int:
    """Return a new epoch, greater than any before; earlier attempts can no longer commit. Raises ``StoreError``."""
    first = current(store, run, key) + 1
    for epoch in range(first, first + MAX_RACES):
        # The nonce tells our own write from another's when an answer is lost.
        claim_of = {"epoch": epoch, "host": socket.gethostname(), "time": clock.now(), "nonce": secrets.token_hex(16)}
        if store.put_if_absent(store.key(run, key, "fence", fence_name(epoch)), json.dumps(claim_of).encode()):
            return epoch
    raise StoreError(
        must("fence", "free to claim", f"lost {MAX_RACES} times", store.key(run, key, "fence"), "stop the other jobs")
    )


def current(store: Store, run: str, key: str) -> int:
    """Return the newest epoch that was claimed; 0 when there is none."""
    return max((epoch for epoch, kind in _listed(store, run, key) if not kind), default=0)


def require_newest(store: Store, run: str, key: str, epoch: int) -> None:
    """Raise ``BusyError`` when a newer attempt has claimed the fence."""
    newest = current(store, run, key)
    if newest > epoch:
        do = "nothing: this attempt ends, the newer one goes on"
        raise BusyError(
            must("this attempt's fence", "the newest", f"{epoch}, with {newest} after it", f"{run}/{key}", do)
        )


def record_resume(store: Store, run: str, key: str, epoch: int, source: StepId | None) -> None:
    """Write down what the attempt of ``epoch`` starts from (none: from scratch). Must come before its first step."""
    step, from_epoch = (source.step, source.epoch) if source else (0, 0)
    _write_once(store, run, key, epoch, "resume", {"step": step, "epoch": from_epoch})


def record_commit(store: Store, run: str, key: str, epoch: int, saved: StepId) -> None:
    """Write down the first checkpoint that the attempt of ``epoch`` committed; later calls change nothing."""
    data = json.dumps({"step": saved.step, "epoch": saved.epoch}).encode()
    store.put_if_absent(store.key(run, key, "fence", fence_name(epoch, "committed")), data)


def record_rollback(store: Store, run: str, key: str, decided: Rollback) -> None:
    """Write down that the attempt of ``decided.epoch`` rolls back. Raises ``BusyError`` where it is not the newest.

    Two that come between that look and the record cannot spoil anything: what the newer one resumed from counts more.
    """
    require_newest(store, run, key, decided.epoch)
    fields = {name: value for name, value in asdict(decided).items() if name != "epoch"}
    _write_once(store, run, key, decided.epoch, "rollback", fields)


def rollbacks(store: Store, run: str, key: str) -> tuple[Rollback, ...]:
    """Return what each attempt that rolled back decided, by epoch."""

    def read(epoch: int, said: Any) -> Rollback:
        return Rollback(epoch, int(said["step"]), int(said["at_most"]), int(said["first"]), str(said["why"]))

    return _records(store, run, key, "rollback", read)


def resumes(store: Store, run: str, key: str) -> tuple[Resumed, ...]:
    """Return what each attempt started from, by epoch."""
    return _records(store, run, key, "resume", lambda own, said: Resumed(own, int(said["step"]), int(said["epoch"])))


def commits(store: Store, run: str, key: str) -> tuple[StepId, ...]:
    """Return the first checkpoint of each attempt that committed one."""
    return _records(store, run, key, "committed", lambda _, said: StepId(int(said["step"]), int(said["epoch"])))


def _write_once(store: Store, run: str, key: str, epoch: int, kind: str, fields: Mapping[str, int | str]) -> None:
    name, data = store.key(run, key, "fence", fence_name(epoch, kind)), json.dumps(fields).encode()
    if not store.put_if_absent(name, data) and store.get(name) != data:
        do = "start a new attempt, which claims a fence of its own"
        raise CheckpointError(must(f"{kind} record", f"{fields}", "another already", name, do))


def _records(store: Store, run: str, key: str, kind: str, read: Callable[[int, Any], T]) -> tuple[T, ...]:
    """Return what ``read`` makes of each record of one kind and its epoch, by epoch.

    One that cannot be read stops the run: without it the lineage is unknown.
    """
    found = []
    for epoch in sorted(epoch for epoch, other in _listed(store, run, key) if other == kind):
        name = store.key(run, key, "fence", fence_name(epoch, kind))
        try:
            found.append(read(epoch, json.loads(store.get(name))))
        except (ValueError, KeyError, TypeError) as error:
            do = "restore it from a backup"
            raise CheckpointError(must("fence record", "valid JSON", "torn", name, do)) from error
    return tuple(found)


def _listed(store: Store, run: str, key: str) -> list[tuple[int, str]]:
    prefix = store.key(run, key, "fence") + "/"
    names = (parse_fence(found.key.removeprefix(prefix)) for found in store.list(prefix))
    return [name for name in names if name is not None]
