"""A simulated S3 server behind the real ``clients.store.Store``, which fails in every way that a network can."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from botocore.exceptions import ClientError, ReadTimeoutError
from sim_clock import Killed, Process, Sim

from steelrail.clients.store import Store
from steelrail.config import schema

CONFIG = schema.Store(bucket="bucket", endpoint="http://127.0.0.1:1", retry_seconds=2.0)
WRITES = ("put", "delete", "complete")


@dataclass(eq=False)
class Server:
    """Objects, and what goes wrong. ``rate``: chance of a fault per call; ``crash``: of the caller's death.

    ``stop``: of its being stopped before its call arrives, as by SIGSTOP; ten times that where it matters most.
    ``starved``: it takes no files of checkpoints, though it is there for fences.
    """

    sim: Sim
    rate: float
    crash: float
    stop: float = 0.0
    objects: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, tuple[str, dict[int, bytes]]] = field(default_factory=dict)
    written: dict[str, datetime] = field(default_factory=dict)
    mutations: int = 0
    away_until: float = 0.0
    starved: bool = False
    faults: Counter[str] = field(default_factory=Counter)
    heed: Callable[[str, str, Process], None] = lambda verb, key, process: None

    def call(self, verb: str, key: str, apply: Callable[[], Any]) -> Any:
        """Carry out one request, or some of it. ``apply`` takes effect at once and raises what the server answers."""
        sim, process = self.sim, self.sim.process
        sim.pause(sim.rng.random() * 0.05)
        if self.sim.now < self.away_until:
            self.faults["away"] += 1
            raise ReadTimeoutError(endpoint_url="sim")
        self._maybe_crash(process)
        self._maybe_stop(process, verb, key)
        if self.starved and "/steps/" in key and verb in ("put", "create", "part", "complete"):
            self.faults["starved"] += 1
            raise refusal("SlowDown", 503)
        kind = self._fault(verb)
        if kind == "error":
            raise refusal("SlowDown", 503)
        if kind == "late":
            sim.start(
                Process("late", -1, process.epoch), lambda: self._quietly(verb, key, apply, process), self._long()
            )
            raise ReadTimeoutError(endpoint_url="sim")
        if kind == "slow":
            sim.pause(self._long())
        answer = self._applied(verb, key, apply, process)
        if kind == "duplicate":
            sim.start(
                Process("copy", -1, process.epoch), lambda: self._quietly(verb, key, apply, process), self._long()
            )
        self._maybe_crash(process)
        if kind == "timeout":
            raise ReadTimeoutError(endpoint_url="sim")
        return answer

    def _applied(self, verb: str, key: str, apply: Callable[[], Any], process: Process) -> Any:
        answer = apply()
        self.mutations += 1
        if verb in ("put", "complete"):
            self.written[key] = datetime.fromtimestamp(self.sim.now, UTC)
        self.heed(verb, key, process)
        return answer

    def _quietly(self, verb: str, key: str, apply: Callable[[], Any], process: Process) -> None:
        """Take effect when nobody waits for the answer any more."""
        with contextlib.suppress(ClientError):
            self._applied(verb, key, apply, process)

    def _fault(self, verb: str) -> str:
        if self.sim.rng.random() >= self.rate:
            return ""
        kinds = ["error", "slow", "timeout"] + (["late", "duplicate"] if verb in WRITES else [])
        kind = self.sim.rng.choice(kinds)
        self.faults[kind] += 1
        return kind

    def _long(self) -> float:
        return self.sim.rng.choice((0.5, 3.0, 20.0, 100.0)) * self.sim.rng.random()

    def _maybe_crash(self, process: Process) -> None:
        if self.sim.rng.random() < self.crash:
            self.faults["crash"] += 1
            process.dead = True
        if process.dead:
            raise Killed

    def _maybe_stop(self, process: Process, verb: str, key: str) -> None:
        delicate = verb in WRITES and (key.endswith("manifest.json") or "/fence/" in key)
        if process.host >= 0 and self.sim.rng.random() < self.stop * (10 if delicate else 1):
            self.faults["stopped"] += 1
            process.frozen_until = self.sim.now + self.sim.rng.choice((2.0, 10.0, 100.0)) * self.sim.rng.random()
            self.sim.pause(0.0)

    def torn(self, data: bytes) -> bytes:
        """Return a body as it arrives: at times only half of it."""
        if data and self.sim.rng.random() < self.rate / 3:
            self.faults["torn"] += 1
            return data[: len(data) // 2]
        return data

    def paged(self, keys: list[str]) -> list[str]:
        """Return a page of a listing, in an order of the server's own."""
        if len(keys) > 1 and self.sim.rng.random() < 0.5:
            self.faults["reordered"] += 1
            self.sim.rng.shuffle(keys)
        return keys


def refusal(code: str, status: int) -> ClientError:
    """Return a server's answer that refuses."""
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "call")


def etag(data: bytes) -> str:
    """Return an object's ETag as S3 writes it."""
    return '"' + hashlib.md5(data, usedforsecurity=False).hexdigest() + '"'


class Client:
    """The part of boto3's S3 client that ``Store`` uses."""

    def __init__(self, server: Server) -> None:
        self._server, self._objects = server, server.objects

    def list_objects_v2(self, Prefix: str, Bucket: str = "", ContinuationToken: str = "", MaxKeys: int = 0) -> Any:
        def apply() -> Any:
            found = sorted(key for key in self._objects if key.startswith(Prefix) and key > ContinuationToken)
            size = self._server.sim.rng.choice((3, 1000, 1000))
            page, more = found[:size], len(found) > size
            last = page[-1] if page else ""
            items = [
                {
                    "Key": key,
                    "Size": len(self._objects[key]),
                    "ETag": etag(self._objects[key]),
                    "LastModified": self._server.written[key],
                }
                for key in self._server.paged(page)
            ]
            return {"Contents": items, "IsTruncated": more, "NextContinuationToken": last}

        return self._server.call("list", Prefix, apply)

    def head_object(self, Key: str, Bucket: str = "") -> Any:
        def apply() -> Any:
            data = self._there(Key)
            return {"ContentLength": len(data), "ETag": etag(data)}

        return self._server.call("head", Key, apply)

    def get_object(self, Key: str, Bucket: str = "", Range: str = "") -> Any:
        def apply() -> Any:
            data = whole = self._there(Key)
            if Range:
                first, _, last = Range.removeprefix("bytes=").partition("-")
                data = whole[int(first) : int(last) + 1]
            body = io.BytesIO(self._server.torn(data))
            return {"ContentLength": len(data), "ETag": etag(whole), "Body": body}

        return self._server.call("get", Key, apply)

    def put_object(
        self, Key: str, Body: bytes, Bucket: str = "", IfNoneMatch: str = "", ChecksumCRC32: str = ""
    ) -> Any:
        def apply() -> Any:
            if IfNoneMatch and Key in self._objects:
                raise refusal("PreconditionFailed", 412)
            self._objects[Key] = Body
            return {}

        return self._server.call("put", Key, apply)

    def delete_object(self, Key: str, Bucket: str = "") -> Any:
        return self._server.call("delete", Key, lambda: self._objects.pop(Key, None))

    def create_multipart_upload(self, Key: str, Bucket: str = "", ChecksumAlgorithm: str = "") -> Any:
        def apply() -> Any:
            upload_id = f"u{self._server.mutations}"
            self._server.uploads[upload_id] = (Key, {})
            return {"UploadId": upload_id}

        return self._server.call("create", Key, apply)

    def upload_part(
        self, Key: str, UploadId: str, PartNumber: int, Body: bytes, Bucket: str = "", ChecksumCRC32: str = ""
    ) -> Any:
        def apply() -> Any:
            self._upload(UploadId)[PartNumber] = Body
            return {"ETag": etag(Body)}

        return self._server.call("part", Key, apply)

    def complete_multipart_upload(self, Key: str, UploadId: str, MultipartUpload: Any, Bucket: str = "") -> Any:
        def apply() -> None:
            parts = self._upload(UploadId)
            self._objects[Key] = b"".join(parts[part["PartNumber"]] for part in MultipartUpload["Parts"])
            del self._server.uploads[UploadId]

        return self._server.call("complete", Key, apply)

    def abort_multipart_upload(self, Key: str, UploadId: str, Bucket: str = "") -> Any:
        def apply() -> None:
            self._upload(UploadId)
            del self._server.uploads[UploadId]

        return self._server.call("abort", Key, apply)

    def list_multipart_uploads(self, Prefix: str, Bucket: str = "") -> Any:
        return self._server.call("uploads", Prefix, lambda: {"Uploads": []})

    def _there(self, key: str) -> bytes:
        if key not in self._objects:
            raise refusal("NoSuchKey", 404)
        return self._objects[key]

    def _upload(self, upload_id: str) -> dict[int, bytes]:
        if upload_id not in self._server.uploads:
            raise refusal("NoSuchUpload", 404)
        return self._server.uploads[upload_id][1]


class SimStore(Store):
    """The real store with its retries, its conditional puts and its parts; only the client is another."""

    def __init__(self, server: Server) -> None:
        self.config, self.bucket = CONFIG, CONFIG.bucket
        self._connection: Any = SimpleNamespace(client=Client(server), renew=lambda: None, generation=0)
