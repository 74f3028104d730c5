"""The store against moto for what S3 does, and against a small scripted server for what goes wrong on the way."""

from __future__ import annotations

import base64
import http.server
import logging
import threading
import time
import traceback
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError
from moto import mock_aws

from steelrail.artifacts.requests import Requests
from steelrail.clients import clock, store_transfer
from steelrail.clients.store import MissingObjectError, Store, join_key
from steelrail.clients.store_faults import Fault, explain, judge
from steelrail.clients.store_requests import ANSWERED
from steelrail.config import schema
from steelrail.errors import NodeError, StoreError

CANARY = "canary-secret-7f3a"


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


@pytest.fixture
def store() -> Iterator[Store]:
    with mock_aws():
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="bucket")
        yield Store.open(schema.Store(bucket="bucket", prefix="steelrail", retry_seconds=0.0))


class Scripted(http.server.ThreadingHTTPServer):
    """An S3 that answers its first requests by script: a status, ``reset``, ``apply-reset``, ``truncate``."""

    daemon_threads = True

    def __init__(self, *script: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.objects, self.seen = list(script), dict[str, bytes](), list[str]()
        self.proofs: list[str | None] = []
        self.ignore_conditions = False

    @property
    def store(self) -> Store:
        endpoint = f"http://127.0.0.1:{self.server_port}"
        return Store.open(schema.Store(bucket="bucket", endpoint=endpoint, retry_seconds=5.0, timeout_seconds=1.0))


class Handler(http.server.BaseHTTPRequestHandler):
    server: Scripted
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", length: int | None = None, code: str = "") -> None:
        if code:
            body = f"<Error><Code>{code}</Code><Message>{CANARY}</Message></Error>".encode()
        self.send_response(status)
        self.send_header("ETag", '"tag"')
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def scripted(self) -> str:
        self.server.seen.append(self.command)
        self.data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        step = self.server.script.pop(0) if self.server.script else "serve"
        if step in ("reset", "apply-reset"):
            if step == "apply-reset":
                self.server.objects[self.path] = self.data
            self.close_connection = True
            self.connection.close()
            return ""
        if step.isdigit() or ":" in step:
            status, _, code = step.partition(":")
            self.answer(int(status), code=code or "InternalError")
            return ""
        return step

    def do_PUT(self) -> None:
        self.server.proofs.append(self.headers.get("x-amz-checksum-crc32"))
        if not self.scripted():
            return
        taken = (
            self.path in self.server.objects and self.headers.get("If-None-Match") and not self.server.ignore_conditions
        )
        if taken:
            self.answer(412, code="PreconditionFailed")
            return
        self.server.objects[self.path] = self.data
        self.answer(200)

    def do_GET(self) -> None:
        step = self.scripted()
        if not step:
            return
        if "list-type=2" in self.path:
            keys = "".join(
                f"<Contents><Key>{p[8:]}</Key><Size>1</Size><ETag>e</ETag></Contents>" for p in self.server.objects
            )
            self.answer(200, f"<ListBucketResult>{keys}</ListBucketResult>".encode())
            return
        body = self.server.objects.get(self.path)
        if body is None:
            self.answer(404, code="NoSuchKey")
            return
        span, status = self.headers.get("Range"), 200
        if span:
            first, last = span.removeprefix("bytes=").split("-")
            body, status = body[int(first) : int(last) + 1], 206
        if step == "truncate":
            self.close_connection = True
            self.answer(status, body[: len(body) // 2], len(body))
            return
        self.answer(status, body)

    def do_HEAD(self) -> None:
        if not self.scripted():
            return
        body = b"" if self.path == "/bucket" else self.server.objects.get(self.path)
        self.answer(200, body) if body is not None else self.answer(404)

    def do_DELETE(self) -> None:
        if not self.scripted():
            return
        self.server.objects.pop(self.path, None)
        self.answer(204)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    monkeypatch.setattr(clock, "sleep", lambda seconds: None)
    running: list[Scripted] = []

    class Running(Scripted):
        def __init__(self, *script: str) -> None:
            super().__init__(*script)
            running.append(self)
            threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    yield Running
    for server in running:
        server.shutdown()
        server.server_close()


def test_keys_below_the_prefix_are_of_safe_parts(store: Store) -> None:
    assert store.key("demo", "steps/0001-2", ".metadata") == "steelrail/demo/steps/0001-2/.metadata"


@pytest.mark.parametrize("part", ["", ".", "..", "a//b", "/a", "a b", "a\n", "../x", "ä", "a\\b", "%2e"])
def test_unsafe_key_parts_are_refused(part: str) -> None:
    with pytest.raises(StoreError, match="part of an object key must be"):
        join_key("run", part)


def test_what_is_put_is_listed_headed_ranged_and_got(store: Store) -> None:
    key = store.key("a", "b")
    store.put(key, b"0123456789")
    listed = list(store.list(store.key("a")))
    assert [(found.key, found.size_bytes) for found in listed] == [(key, 10)]
    assert store.head(key) == replace(listed[0], modified=None)
    assert store.get(key) == b"0123456789"
    assert store.get_range(key, 3, 4) == b"3456"
    store.delete(key)
    store.delete(key)
    assert store.head(key) is None


def test_a_listing_says_when_an_object_was_written(store: Store) -> None:
    store.put("a", b"1")
    (found,) = store.list("a")
    assert found.modified is not None
    assert abs(found.modified - time.time()) < 3600


def test_listing_goes_over_pages(store: Store) -> None:
    keys = {store.key("many", f"{i:04d}") for i in range(1001)}
    for key in keys:
        store.put(key, b"")
    assert {found.key for found in store.list(store.key("many"))} == keys


def test_missing_object_is_named(store: Store) -> None:
    with pytest.raises(MissingObjectError, match="s3://bucket/steelrail/gone"):
        store.get(store.key("gone"))


def test_missing_bucket_is_named() -> None:
    with mock_aws(), pytest.raises(StoreError, match=r"bucket must be there, is missing .*create it"):
        Store.open(schema.Store(bucket="absent", retry_seconds=0.0)).put("a", b"")


def test_probe_does_not_make_a_missing_bucket() -> None:
    with mock_aws(), pytest.raises(StoreError, match="bucket must be there, is missing"):
        Store.open(schema.Store(bucket="absent", retry_seconds=0.0)).probe()


def test_second_conditional_put_changes_nothing(store: Store) -> None:
    key = store.key("once")
    assert [store.put_if_absent(key, b"first"), store.put_if_absent(key, b"second")] == [True, False]
    assert store.get(key) == b"first"


def test_object_above_the_limit_is_refused(store: Store) -> None:
    store.put("big", b"12345")
    with pytest.raises(StoreError, match="at most 4 bytes"):
        store.get("big", max_bytes=4)


def test_big_file_goes_in_parts_and_comes_back_in_ranges(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_transfer, "PART_BYTES", 5 * 2**20)
    data = bytes(range(256)) * (11 * 2**20 // 256)
    (tmp_path / "up").write_bytes(data)
    assert store.put_file("file", tmp_path / "up") == len(data)
    assert store.head("file").etag.endswith("-3")  # type: ignore[union-attr]
    assert store.get_file("file", tmp_path / "down") == len(data)
    assert (tmp_path / "down").read_bytes() == data


def test_failed_part_aborts_the_upload(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_transfer, "PART_BYTES", 5 * 2**20)
    (tmp_path / "up").write_bytes(bytes(11 * 2**20))
    real = store._client.upload_part

    def fail(**call: object) -> object:
        if call["PartNumber"] == 2:
            raise ClientError(
                {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}, "UploadPart"
            )
        return real(**call)

    monkeypatch.setattr(store._client, "upload_part", fail)
    with pytest.raises(StoreError, match="access must be allowed"):
        store.put_file("file", tmp_path / "up")
    assert "Uploads" not in store._client.list_multipart_uploads(Bucket="bucket")
    assert store.head("file") is None


def test_old_unfinished_uploads_are_aborted(store: Store) -> None:
    store._client.create_multipart_upload(Bucket="bucket", Key="p/x")
    (upload,) = store.unfinished("p/")
    assert (upload.key, upload.begun > 1e9) == ("p/x", True)
    assert store.abort_unfinished("p/", before=0.0) == 0
    assert store.abort_unfinished("p/", before=4e9) == 1


def test_empty_file_makes_the_trip(store: Store, tmp_path: Path) -> None:
    (tmp_path / "up").touch()
    store.put_file("empty", tmp_path / "up")
    assert store.get_file("empty", tmp_path / "down") == 0
    assert (tmp_path / "down").read_bytes() == b""


def test_local_fault_is_told_apart_from_the_store(store: Store, tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="missing"):
        store.put_file("file", tmp_path / "absent")
    store.put("file", b"x")
    with pytest.raises(NodeError, match="missing"):
        store.get_file("file", tmp_path / "no-folder" / "down")


def test_parts_stay_below_the_limit_of_ten_thousand() -> None:
    size = 5 * 10**12
    assert len(store_transfer.spans(size, store_transfer.part_bytes(size))) <= 10_000
    assert store_transfer.part_bytes(1) == store_transfer.PART_BYTES


def test_probe_leaves_nothing_behind(store: Store) -> None:
    store.probe()
    assert list(store.list("")) == []


def test_store_that_ignores_conditions_is_refused(serve: type[Scripted]) -> None:
    server = serve()
    server.ignore_conditions = True
    with pytest.raises(StoreError, match=r"one that refuses a second put .* is one that overwrites"):
        server.store.probe()
    assert server.objects == {}


@pytest.mark.parametrize(
    "fault",
    [
        "503:SlowDown",
        "500",
        "429:TooManyRequests",
        "reset",
        "truncate",
        "400:RequestTimeout",
        "400:XAmzContentSHA256Mismatch",
    ],
)
def test_passing_fault_is_repeated_until_the_body_is_whole(serve: type[Scripted], fault: str) -> None:
    server = serve(fault, fault)
    server.objects["/bucket/a"] = b"whole body"
    assert server.store.get("a") == b"whole body"
    assert server.seen == ["GET"] * 3


def test_what_is_put_carries_its_crc32_so_that_a_server_refuses_bytes_that_changed_on_the_way(
    serve: type[Scripted], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve("400:BadDigest", "serve", "400:BadDigest")
    assert server.store.put("a", b"put") is None
    assert server.store.put_if_absent("b", b"if absent") is True
    proofs = [store_transfer.crc32_of(data) for data in (b"put", b"if absent")]
    assert proofs[0] == base64.b64encode(zlib.crc32(b"put").to_bytes(4, "big")).decode()
    assert server.proofs == [proofs[0]] * 2 + [proofs[1]] * 2


def test_a_part_carries_its_crc32(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_transfer, "PART_BYTES", 5 * 2**20)
    (tmp_path / "up").write_bytes(bytes(6 * 2**20))
    sent: list[str] = []
    store._client.meta.events.register(
        "before-call.s3.UploadPart", lambda params, **_: sent.append(params["headers"]["x-amz-checksum-crc32"])
    )
    store.put_file("file", tmp_path / "up")
    assert sorted(sent) == sorted(store_transfer.crc32_of(bytes(size * 2**20)) for size in (5, 1))


def test_truncated_file_is_fetched_again(serve: type[Scripted], tmp_path: Path) -> None:
    server = serve("serve", "truncate")
    server.objects["/bucket/a"] = b"x" * 1000
    assert server.store.get_file("a", tmp_path / "a") == 1000
    assert (tmp_path / "a").read_bytes() == b"x" * 1000
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_own_write_whose_answer_was_lost_counts_as_won(serve: type[Scripted]) -> None:
    server = serve("apply-reset")
    assert server.store.put_if_absent("a", b"mine") is True
    assert server.seen == ["PUT", "PUT", "GET"]


def test_other_write_met_after_a_lost_answer_counts_as_lost(serve: type[Scripted]) -> None:
    server = serve("reset")
    server.objects["/bucket/a"] = b"theirs"
    assert server.store.put_if_absent("a", b"mine") is False
    assert server.objects["/bucket/a"] == b"theirs"


def test_store_that_stays_down_is_given_up_in_time(serve: type[Scripted], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    monkeypatch.setattr(clock, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    server = serve(*["503:SlowDown"] * 1000)
    with pytest.raises(StoreError, match=r"store must be ready, is failing for \d s \(SlowDown, HTTP 503\)"):
        server.store.get("a")
    assert now[0] == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("403:AccessDenied", "access must be allowed, is denied"),
        ("403:InvalidAccessKeyId", "store credentials must be known to the store"),
        ("403:SignatureDoesNotMatch", "store credentials must be known to the store"),
        ("404:NoSuchBucket", "bucket must be there, is missing"),
        ("403:QuotaExceeded", "store must be able to take more bytes, is full"),
        ("403:RequestTimeTooSkewed", "this host's clock must be right"),
        ("501:NotImplemented", "store call must be accepted"),
    ],
)
def test_final_fault_fails_at_the_first_answer_and_names_what_is_missing(
    serve: type[Scripted], answer: str, message: str
) -> None:
    server = serve(answer, answer)
    with pytest.raises(StoreError, match=message):
        server.store.put("a", b"")
    assert server.seen == ["PUT"]


def test_refused_keys_are_read_again_and_used_when_they_are_others(
    serve: type[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve("403:InvalidAccessKeyId", "403:InvalidAccessKeyId")
    store = server.store
    with pytest.raises(StoreError, match="store credentials must be known to the store"):
        store.put("a", b"")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "replaced")
    store.put("a", b"")
    assert server.seen == ["PUT"] * 3


def test_expired_token_is_read_again_once(serve: type[Scripted]) -> None:
    server = serve("400:ExpiredToken", "serve", "400:ExpiredToken", "400:ExpiredToken")
    store = server.store
    store.put("a", b"")
    with pytest.raises(StoreError, match="store credentials must be valid, is expired"):
        store.put("a", b"")


def test_expired_token_is_read_again_where_the_answer_has_no_words(serve: type[Scripted]) -> None:
    # After a 400 to a HEAD botocore asks for the bucket's region once more by itself.
    server = serve("400:ExpiredToken", "400:ExpiredToken", "serve")
    store = server.store
    assert store.head("absent") is None
    server.script.extend(["400:ExpiredToken"] * 20)
    with pytest.raises(StoreError, match=r"access must be allowed, is denied or expired \(400, HTTP 400\)"):
        store.head("absent")
    with pytest.raises(StoreError, match="store credentials must be valid, is expired"):
        store.require_bucket()


def test_missing_credentials_fail_at_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StoreError, match=r"found by boto3's chain, is not found"):
        Store.open(schema.Store(bucket="bucket"))
    with pytest.raises(StoreError, match="ProfileNotFound"):
        Store.open(schema.Store(bucket="bucket", profile="absent"))


def test_unreachable_endpoint_is_named() -> None:
    store = Store.open(schema.Store(bucket="bucket", endpoint="http://127.0.0.1:9", retry_seconds=0.0))
    with pytest.raises(StoreError, match=r"store must be reachable.*127\.0\.0\.1:9.*check store\.endpoint"):
        store.get("a")


def test_no_secret_in_repr_log_or_trace(serve: type[Scripted], caplog: pytest.LogCaptureFixture) -> None:
    store = serve("403:SignatureDoesNotMatch").store
    with caplog.at_level(logging.INFO), pytest.raises(StoreError) as caught:
        store.put("a", b"")
    said = repr(store) + caplog.text + str(caught.value) + "".join(traceback.format_exception(caught.value))
    assert CANARY not in said


def test_errors_of_the_client_are_judged_by_kind() -> None:
    assert judge(EndpointConnectionError(endpoint_url="http://x")) is Fault.TRANSIENT
    assert judge(NoCredentialsError()) is Fault.FINAL
    assert "credentials" in explain(NoCredentialsError(), "put s3://b", 0.0)


def test_only_the_tries_that_the_store_answered_are_counted_as_requests(serve: type[Scripted]) -> None:
    ANSWERED.take()
    server = serve("reset", "500", "503:SlowDown", "serve")
    server.store.put("key", b"data")
    assert (server.seen, ANSWERED.take()) == (["PUT"] * 4, Requests(put=1))
