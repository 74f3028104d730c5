"""The door to the S3 store, in the subset that old and small servers keep.

Plain PUT, PUT with ``If-None-Match: *``, multipart without conditions, ListV2, range GET. Integrity is ours: digests
stand in manifests, lengths are compared here. One loop of our own repeats every call, for ``store.retry_seconds``.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from botocore.exceptions import ClientError

from steelrail.clients import clock, store_probe, store_transfer
from steelrail.clients.disk import on_disk
from steelrail.clients.store_connect import Connection
from steelrail.clients.store_faults import (
    ERRORS,
    ChangedError,
    Fault,
    MissingObjectError,
    TruncatedError,
    cause,
    code_of,
    explain,
    judge,
)
from steelrail.config import schema
from steelrail.errors import StoreError, must

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

__all__ = ["MissingObjectError", "Store", "StoredObject", "Unfinished", "join_key"]

T = TypeVar("T")
MIB = 2**20
GET_MAX_BYTES = 256 * MIB
MAX_BACKOFF_SECONDS = 10.0
_PART = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class StoredObject:
    """One object as listed. ``key`` is the full key in the bucket; ``etag`` without quotes.

    ``modified``: when it was written, by the store's clock (Unix seconds; none: not said, or not from a listing).
    """

    key: str
    size_bytes: int
    etag: str
    modified: float | None = None


@dataclass(frozen=True)
class Unfinished:
    """A multipart upload that was begun and not completed: its parts are paid for. ``begun``: Unix seconds."""

    key: str
    upload_id: str
    begun: float


def join_key(*parts: str) -> str:
    """Return parts joined by ``/``. Each piece must be of [A-Za-z0-9._-], not ``.`` or ``..``."""
    pieces = [piece for part in parts for piece in part.split("/")]
    for piece in pieces:
        if not _PART.fullmatch(piece) or piece in (".", ".."):
            raise StoreError(
                must(
                    "part of an object key",
                    "of A-Z a-z 0-9 . _ -",
                    repr(piece)[:80],
                    "/".join(parts)[:200],
                    "rename it",
                )
            )
    return "/".join(pieces)


class Store:
    """One bucket. Methods take full keys (``key`` makes those below the prefix), raise ``StoreError``, suit threads."""

    def __init__(self, config: schema.Store, bucket: str) -> None:
        self.config, self.bucket = config, bucket
        self._connection = Connection(config, self._where())

    @classmethod
    def open(cls, config: schema.Store, bucket: str | None = None) -> Store:
        """Return the store of the run file, or another ``bucket`` behind the same endpoint. Makes no request."""
        return cls(config, bucket or config.bucket)

    @property
    def _client(self) -> S3Client:
        return self._connection.client

    def __repr__(self) -> str:
        return f"Store({self._where()})"

    def key(self, *parts: str) -> str:
        """Return the full key of ``parts`` below the configured prefix."""
        return join_key(self.config.prefix, *parts)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield every object whose key begins with ``prefix``, in the store's order."""
        token: dict[str, Any] = {}
        while True:
            page = self._call("list", prefix, partial(self._page, prefix, token))
            for item in page.get("Contents", ()):
                written = item.get("LastModified")
                modified = None if written is None else written.timestamp()
                yield StoredObject(item["Key"], item["Size"], item["ETag"].strip('"'), modified)
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def head(self, key: str) -> StoredObject | None:
        """Return the object's size and ETag, or none when there is no such object."""
        try:
            answer = self._call("head", key, lambda: self._client.head_object(Bucket=self.bucket, Key=key))
        except MissingObjectError:
            return None
        return StoredObject(key, answer["ContentLength"], answer["ETag"].strip('"'))

    def get(self, key: str, max_bytes: int = GET_MAX_BYTES) -> bytes:
        """Return the whole object, its length checked. Raises ``MissingObjectError``; refuses over ``max_bytes``."""
        return self._call("get", key, lambda: self._read(key, max_bytes))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return ``length`` bytes from ``start``; a range past the end is an error."""
        return self._read_range(key, start, length)

    def get_file(self, key: str, path: Path) -> int:
        """Write the object to ``path``, whole or not at all, in parallel ranges when big. Returns its bytes."""
        found = self.head(key)
        if found is None:
            raise MissingObjectError(must("object", "in the store", "missing", self._where(key), "rerun what makes it"))
        store_transfer.fetch(found, path, self._read_range)
        return found.size_bytes

    def put(self, key: str, data: bytes) -> None:
        """Write the object, replacing what was there."""
        proof = store_transfer.crc32_of(data)
        self._call(
            "put", key, lambda: self._client.put_object(Bucket=self.bucket, Key=key, Body=data, ChecksumCRC32=proof)
        )

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write the object if there is none of this key; returns whether ``data`` is what is now there by our doing.

        A repeated request may meet its own earlier success, so after an unclear answer the object is read back and
        compared: where winning matters, ``data`` must be unlike what any other writer would put.
        """
        unclear, proof = False, store_transfer.crc32_of(data)

        def attempt() -> bool:
            nonlocal unclear
            try:
                self._client.put_object(Bucket=self.bucket, Key=key, Body=data, ChecksumCRC32=proof, IfNoneMatch="*")
            except ERRORS as error:
                if judge(error) is Fault.EXISTS:
                    return unclear and self._read(key, GET_MAX_BYTES) == data
                unclear = unclear or judge(error) is Fault.TRANSIENT
                raise
            return True

        return self._call("put (if absent)", key, attempt)

    def put_file(self, key: str, path: Path, threads: int = store_transfer.THREADS) -> int:
        """Upload a file, when big in ``threads`` parts at once; returns its bytes. What a failure leaves is aborted."""
        with on_disk(path):
            size = path.stat().st_size
        if size <= store_transfer.PART_BYTES:
            with on_disk(path):
                data = path.read_bytes()
            self.put(key, data)
        else:
            self._put_parts(key, path, size, threads)
        found = self.head(key)
        if found is None or found.size_bytes != size:
            now = "missing" if found is None else f"{found.size_bytes} bytes"
            raise StoreError(must("uploaded object", f"{size} bytes", now, self._where(key), "check the server"))
        return size

    def delete(self, key: str) -> None:
        """Remove the object; one that is not there is no error."""
        self._call("delete", key, lambda: self._client.delete_object(Bucket=self.bucket, Key=key))

    def abort_unfinished(self, prefix: str, before: float) -> int:
        """Abort multipart uploads below ``prefix`` begun before Unix time ``before``; returns how many."""
        old = [upload for upload in self.unfinished(prefix) if upload.begun < before]
        for upload in old:
            self._abort(upload.key, upload.upload_id)
        return len(old)

    def unfinished(self, prefix: str) -> tuple[Unfinished, ...]:
        """Return multipart uploads below ``prefix`` that were not completed (the first thousand)."""
        page = self._call(
            "list uploads", prefix, lambda: self._client.list_multipart_uploads(Bucket=self.bucket, Prefix=prefix)
        )
        uploads = page.get("Uploads", ())
        return tuple(Unfinished(one["Key"], one["UploadId"], one["Initiated"].timestamp()) for one in uploads)

    def probe(self) -> None:
        """Prove that the store keeps its word (see ``store_probe``). Raises ``StoreError`` when it does not."""
        store_probe.probe(self, self._where)

    def require_bucket(self) -> None:
        """Raise ``StoreError`` unless the bucket is there: some servers make one at the first put, misspelt or not."""
        # A listing and no HEAD: only an answer with a body says what is wrong (expired, denied, missing).
        self._call("probe", "", lambda: self._client.list_objects_v2(Bucket=self.bucket, MaxKeys=1))

    def _where(self, key: str = "") -> str:
        return f"s3://{self.bucket}/{key} at {self.config.endpoint or 'AWS ' + self.config.region}"

    def _call(self, verb: str, key: str, call: Callable[[], T]) -> T:
        """Return ``call()``, repeated with jittered backoff while the fault passes and time is left."""
        began, where, renewed = clock.monotonic(), f"{verb} {self._where(key)}", False
        pause = 0.1
        while True:
            generation = self._connection.generation
            try:
                return call()
            except ERRORS as error:
                fault, spent = judge(error), clock.monotonic() - began
                if fault is Fault.MISSING:
                    raise MissingObjectError(
                        must("object", "in the store", "missing", where, "rerun what makes it")
                    ) from None
                if fault in (Fault.EXPIRED, Fault.DENIED) and not renewed:
                    # A file that nodes share may have been renewed since; botocore does not read it again by itself.
                    self._connection.renew()
                    renewed = True
                    if fault is Fault.EXPIRED or self._connection.generation != generation:
                        continue
                if fault is not Fault.TRANSIENT or spent >= self.config.retry_seconds:
                    raise StoreError(explain(error, where, spent)) from cause(error)
            clock.sleep(min(pause * random.uniform(0.5, 1.0), self.config.retry_seconds - spent))
            pause = min(2 * pause, MAX_BACKOFF_SECONDS)

    def _page(self, prefix: str, token: dict[str, Any]) -> Any:
        return self._client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, **token)

    def _read(self, key: str, max_bytes: int) -> bytes:
        answer = self._client.get_object(Bucket=self.bucket, Key=key)
        with answer["Body"] as body:
            if answer["ContentLength"] > max_bytes:
                raise StoreError(
                    must("object", f"at most {max_bytes} bytes", answer["ContentLength"], self._where(key), "remove it")
                )
            return _whole(body.read(), answer["ContentLength"])

    def _read_range(self, key: str, start: int, length: int, etag: str | None = None) -> bytes:
        """Return one range; with ``etag``, of exactly that version of the object."""

        def read() -> bytes:
            span = f"bytes={start}-{start + length - 1}"
            answer = self._client.get_object(Bucket=self.bucket, Key=key, Range=span)
            with answer["Body"] as body:
                if etag is not None and answer["ETag"].strip('"') != etag:
                    raise ChangedError(f"{key} was replaced")
                return _whole(body.read(length + 1), length)

        return self._call("get", key, read) if length else b""

    def _put_parts(self, key: str, path: Path, size: int, threads: int) -> None:
        begin = partial(self._client.create_multipart_upload, Bucket=self.bucket, Key=key, ChecksumAlgorithm="CRC32")
        upload_id = self._call("put", key, begin)["UploadId"]
        try:
            parts = store_transfer.send(path, size, partial(self._put_part, key, upload_id), threads)
            self._call("put", key, partial(self._complete, key, upload_id, parts, size))
        except BaseException:
            # The failure itself is what the caller must hear, so a failing abort is left to ``abort_unfinished``.
            with contextlib.suppress(StoreError):
                self._abort(key, upload_id)
            raise

    def _put_part(self, key: str, upload_id: str, number: int, data: bytes) -> dict[str, Any]:
        """Send one part; returns what the end of the upload says of it."""
        part = partial(self._client.upload_part, Bucket=self.bucket, Key=key, UploadId=upload_id, PartNumber=number)
        proof = store_transfer.crc32_of(data)
        etag = self._call("put part", key, lambda: part(Body=data, ChecksumCRC32=proof)["ETag"])
        return {"PartNumber": number, "ETag": etag, "ChecksumCRC32": proof}

    def _complete(self, key: str, upload_id: str, parts: Any, size: int) -> None:
        try:
            self._client.complete_multipart_upload(
                Bucket=self.bucket, Key=key, UploadId=upload_id, MultipartUpload={"Parts": parts}
            )
        except ClientError as error:
            # A repeated completion meets its own success: the upload is gone and the object is there.
            found = self.head(key) if code_of(error) == "NoSuchUpload" else None
            if found is None or found.size_bytes != size:
                raise

    def _abort(self, key: str, upload_id: str) -> None:
        def abort() -> None:
            try:
                self._client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload_id)
            except ClientError as error:
                if code_of(error) != "NoSuchUpload":
                    raise

        self._call("abort", key, abort)


def _whole(data: bytes, length: int) -> bytes:
    if len(data) != length:
        raise TruncatedError(f"{len(data)} bytes came of {length}")
    return data
