"""Row 11, at each call of the store client: what a network or a server does to one request, against real servers."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from proxy import Fault, Proxy
from servers import BUCKET, Keys, Server, s3

from steelrail.clients import store_transfer
from steelrail.clients.store import Store
from steelrail.config import schema

PART_BYTES = 5 * 2**20
BODY = bytes(range(256)) * 400
BIG = hashlib.shake_128(b"big").digest(2 * PART_BYTES + 1000)
TIMEOUT_SECONDS = 1.0

# What befalls a call, and how often in a row.
PASSING: dict[str, Callable[[], Fault]] = {
    "503 SlowDown": lambda: Fault("answer", times=3),
    "500": lambda: Fault("answer", times=2, status=500, code="InternalError"),
    "reset": lambda: Fault("reset", times=2),
    "reset after apply": lambda: Fault("reset-after"),
    "stall": lambda: Fault("stall", seconds=2 * TIMEOUT_SECONDS),
}
WITH_BODY: dict[str, Callable[[], Fault]] = {
    "truncated": lambda: Fault("truncate", times=2),
    "stall in the body": lambda: Fault("stall-in-body", seconds=2 * TIMEOUT_SECONDS),
    "slow link": lambda: Fault("slow", rate=4_000_000.0),
}
CHANGED: dict[str, Callable[[], Fault]] = {"byte changed on the way": lambda: Fault("flip-up", times=2)}


@pytest.fixture
def store(server: Server, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(store_transfer, "PART_BYTES", PART_BYTES)
    return open_store(proxy.url, server.keys, tmp_path / "credentials", monkeypatch)


def open_store(endpoint: str, keys: Keys, path: Path, patch: pytest.MonkeyPatch, **settings: Any) -> Store:
    """Return a store that takes its keys from a file, as a rank's does."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        patch.delenv(name, raising=False)
    keys.write(path)
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    known = {"bucket": BUCKET, "prefix": f"calls/{time.time_ns()}", "timeout_seconds": TIMEOUT_SECONDS}
    return Store.open(schema.Store(**{**known, "endpoint": endpoint, "retry_seconds": 30.0, **settings}))


def put(store: Store, at: str, path: Path) -> None:
    store.put(store.key(at), BODY)


def put_if_absent(store: Store, at: str, path: Path) -> None:
    assert store.put_if_absent(store.key(at), BODY) is True
    assert store.put_if_absent(store.key(at), b"other") is False


def get(store: Store, at: str, path: Path) -> None:
    assert store.get(store.key("there")) == BODY


def get_file(store: Store, at: str, path: Path) -> None:
    assert store.get_file(store.key("big"), path) == len(BIG)
    assert path.read_bytes() == BIG


def head(store: Store, at: str, path: Path) -> None:
    found = store.head(store.key("there"))
    assert found is not None
    assert found.size_bytes == len(BODY)


def listing(store: Store, at: str, path: Path) -> None:
    assert [one.key for one in store.list(store.key("there"))] == [store.key("there")]


def delete(store: Store, at: str, path: Path) -> None:
    store.delete(store.key(at))


def put_file(store: Store, at: str, path: Path) -> None:
    path.write_bytes(BIG)
    assert store.put_file(store.key(at), path) == len(BIG)


def abort(store: Store, at: str, path: Path) -> None:
    store._client.create_multipart_upload(Bucket=BUCKET, Key=store.key(at))
    assert store.abort_unfinished(store.key(at), time.time() + 3600) == 1


# Our call, the request of it that is befallen, and what of the list above can befall that.
CALLS = {
    "put": (put, "put", PASSING | CHANGED),
    "put if absent": (put_if_absent, "put", PASSING | CHANGED),
    "get": (get, "get", PASSING | WITH_BODY),
    "get file": (get_file, "get", PASSING | WITH_BODY),
    "head": (head, "head", PASSING),
    "list": (listing, "list", PASSING | WITH_BODY),
    "delete": (delete, "delete", PASSING),
    "begin of parts": (put_file, "begin", PASSING | WITH_BODY),
    "part": (put_file, "part", PASSING | CHANGED),
    "end of parts": (put_file, "complete", PASSING | WITH_BODY),
    "abort of parts": (abort, "abort", PASSING),
    "list of uploads": (abort, "uploads", PASSING | WITH_BODY),
}
QUICK = ("put if absent", "get file")


@pytest.mark.row(11, "each call")
@pytest.mark.parametrize("call", [pytest.param(one, marks=[pytest.mark.quick] * (one in QUICK)) for one in CALLS])
def test_a_fault_that_passes_changes_no_result(
    call: str, store: Store, server: Server, proxy: Proxy, tmp_path: Path, shows: Callable[[str], None]
) -> None:
    act, verb, faults = CALLS[call]
    store.put(store.key("there"), BODY)
    (tmp_path / "big").write_bytes(BIG)
    store.put_file(store.key("big"), tmp_path / "big")
    seconds = {}
    for name, make in faults.items():
        at, fault = name.replace(" ", "-"), make()
        fault.verb = verb
        proxy.add(fault)
        began = time.monotonic()
        act(store, at, tmp_path / "file")
        seconds[name] = time.monotonic() - began
        assert len(fault.met) == fault.times, f"{name} did not happen"
        require_whole(store, server, at, call)
        proxy.clear()
    worst = max(seconds, key=lambda one: seconds[one])
    shows(f"{len(faults)} faults; longest {worst}, {seconds[worst]:.1f} s")


def require_whole(store: Store, server: Server, at: str, call: str) -> None:
    """What was put is there byte for byte, at the server itself; nothing else is left that could not be swept."""
    found = s3(server).list_objects_v2(Bucket=BUCKET, Prefix=store.key(at)).get("Contents", [])
    expected = {put: BODY, put_if_absent: BODY, put_file: BIG}.get(CALLS[call][0])
    bodies = [s3(server).get_object(Bucket=BUCKET, Key=one["Key"])["Body"].read() for one in found]
    assert bodies == ([] if expected is None else [expected])
    store.abort_unfinished(store.key(at), time.time() + 3600)
    assert store.unfinished(store.key(at)) == ()


@pytest.mark.row(11, "each call")
def test_a_server_that_refuses_connections_for_a_while_is_waited_for(
    store: Store, proxy: Proxy, tmp_path: Path, shows: Callable[[str], None]
) -> None:
    store.put(store.key("before"), BODY)
    proxy.close_door()
    threading.Timer(3.0, proxy.open_door).start()
    began = time.monotonic()
    put_if_absent(store, "during", tmp_path / "file")
    shows(f"closed for 3.0 s, done after {time.monotonic() - began:.1f} s")
    assert store.get(store.key("during")) == BODY


@pytest.mark.row(11, "server kill -9 under writes")
def test_no_acknowledged_object_is_lost_or_changed_by_a_killed_server(
    store: Store, server: Server, shows: Callable[[str], None]
) -> None:
    acknowledged: dict[str, bytes] = {}
    ended = threading.Event()

    def write(writer: int) -> None:
        number = 0
        while not ended.is_set():
            key = store.key("kill", f"{writer}-{number:05d}")
            data = hashlib.shake_128(key.encode()).digest(1000 + (number * 7919) % 60_000)
            assert store.put_if_absent(key, data)
            acknowledged[key] = data
            number += 1

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for one in writers:
        one.start()
    for _ in range(2):
        time.sleep(3.0)
        server.kill()
        server.start()
    ended.set()
    for one in writers:
        one.join()
    client = s3(server)
    assert len(acknowledged) > 20
    for key, data in acknowledged.items():
        assert client.get_object(Bucket=BUCKET, Key=key)["Body"].read() == data
    listed = {one.key for one in store.list(store.key("kill"))}
    assert listed == acknowledged.keys()
    shows(f"{len(acknowledged)} acknowledged over 2 kills, 0 lost, 0 changed")
