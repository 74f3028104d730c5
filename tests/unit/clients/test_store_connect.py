"""What a request carries for the integrity of its body, seen where it leaves the client."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from steelrail.clients.store import Store
from steelrail.config import schema


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


class Raw:
    def stream(self) -> list[bytes]:
        return [b""]


@pytest.mark.parametrize(
    ("endpoint", "proof"),
    [
        ("https://store.example", "UNSIGNED-PAYLOAD"),
        (None, "UNSIGNED-PAYLOAD"),
        ("http://127.0.0.1:9", hashlib.sha256(b"body").hexdigest()),
    ],
)
def test_a_body_is_signed_where_nothing_else_protects_it_on_the_way(endpoint: str | None, proof: str) -> None:
    store, sent = Store.open(schema.Store(bucket="bucket", endpoint=endpoint)), list[Any]()

    def answer(request: Any, **_: Any) -> AWSResponse:
        sent.append({name.lower(): value for name, value in request.headers.items()})
        return AWSResponse(request.url, 200, {}, Raw())

    store._client.meta.events.register("before-send.s3", answer)
    store.put("key", b"body")
    (headers,) = sent
    assert {"x-amz-content-sha256", "x-amz-checksum-crc32"} <= headers.keys()
    found = headers["x-amz-content-sha256"]
    assert (found.decode() if isinstance(found, bytes) else found) == proof
