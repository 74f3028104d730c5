"""What a request carries for the integrity of its body, seen where it leaves the client."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from steelrail.clients.store import Store
from steelrail.clients.store_faults import unfit_settings
from steelrail.config import schema
from steelrail.errors import StoreError


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
    assert "x-amz-checksum-crc32" in headers and signed_with(headers) == proof


def signed_with(headers: dict[str, Any]) -> str:
    found = headers["x-amz-content-sha256"]
    return found.decode() if isinstance(found, bytes) else str(found)


@pytest.mark.parametrize(
    ("answered", "second"),
    [({"x-amz-checksum-crc32": "AAAAAA=="}, "UNSIGNED-PAYLOAD"), ({}, hashlib.sha256(b"two").hexdigest())],
)
def test_over_http_parts_are_signed_until_the_server_has_shown_that_it_compares_their_crc32(
    answered: dict[str, str], second: str
) -> None:
    store, sent = Store.open(schema.Store(bucket="bucket", endpoint="http://127.0.0.1:9")), list[str]()

    def answer(request: Any, **_: Any) -> AWSResponse:
        sent.append(signed_with({name.lower(): value for name, value in request.headers.items()}))
        return AWSResponse(request.url, 200, {"ETag": '"e"', **answered}, Raw())

    store._client.meta.events.register("before-send.s3", answer)
    for number, data in enumerate((b"one", b"two"), start=1):
        store._put_part("key", "upload", number, data)
    store.put("whole", b"body")
    assert sent == [hashlib.sha256(b"one").hexdigest(), second, hashlib.sha256(b"body").hexdigest()]


UNFIT = {
    "AWS_SHARED_CREDENTIALS_FILE": "settings",
    "AWS_CONFIG_FILE": "settings",
    "AWS_PROFILE": "nobody",
    "AWS_RETRY_MODE": "bogus",
    "AWS_DEFAULTS_MODE": "bogus",
    "AWS_ACCOUNT_ID_ENDPOINT_MODE": "bogus",
    "AWS_REQUEST_MIN_COMPRESSION_SIZE_BYTES": "bogus",
    "AWS_CREDENTIAL_EXPIRATION": "bogus",
}


@pytest.mark.parametrize("name", UNFIT)
def test_settings_of_aws_of_which_no_client_can_be_made_are_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("settings").write_bytes(b"PAR1\xff\n[x")
    monkeypatch.setenv(name, UNFIT[name])
    with pytest.raises(StoreError, match=rf"\(([^)]*, )?{name}\)") as raised:
        _ = Store.open(schema.Store(bucket="bucket"))._client
    assert "run file" not in str(raised.value)
    assert ("(settings, " in str(raised.value)) == name.endswith("_FILE")


def test_an_unparsable_file_of_credentials_is_named_where_no_variable_leads_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("no section\n")
    for variable in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(StoreError, match=re.escape(str(tmp_path / ".aws" / "credentials"))):
        Store.open(schema.Store(bucket="bucket"))


def test_a_profile_of_the_run_file_that_is_nowhere_is_named_with_its_setting() -> None:
    with pytest.raises(StoreError, match=r"\(store.profile\)"):
        Store.open(schema.Store(bucket="bucket", profile="absent"))


def test_a_secret_is_no_name_to_blame() -> None:
    said = unfit_settings(ValueError("bad: value"), "s3://b", {"AWS_SECRET_ACCESS_KEY": "value"})
    assert "SECRET" not in said
