"""What the store answered is counted, by what stores charge for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

from steelrail.artifacts.requests import NotedRequests, Requests, noted_requests
from steelrail.clients import store_transfer
from steelrail.clients.store import MissingObjectError, Store
from steelrail.clients.store_requests import ANSWERED, Answered, kind_of, note_answered
from steelrail.config import schema


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with mock_aws():
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="bucket")
        ANSWERED.take()
        yield Store.open(schema.Store(bucket="bucket", prefix="steelrail", retry_seconds=0.0))


def test_every_call_of_the_door_is_counted_as_what_it_costs(store: Store) -> None:
    store.put("a", b"0123")
    assert store.put_if_absent("b", b"")
    assert not store.put_if_absent("a", b"other")
    assert (store.get("a"), store.get_range("a", 1, 2)) == (b"0123", b"12")
    assert store.head("gone") is None
    with pytest.raises(MissingObjectError):
        store.get("gone")
    list(store.list(""))
    store.delete("a")
    assert ANSWERED.take() == Requests(put=3, get=4, list=1, delete=1)
    assert ANSWERED.take() == Requests()


def test_each_page_of_a_listing_is_a_request(store: Store) -> None:
    for number in range(1001):
        store.put(f"{number:04d}", b"")
    ANSWERED.take()
    assert len(list(store.list(""))) == 1001
    assert ANSWERED.take() == Requests(list=2)


def test_each_part_of_a_big_file_is_a_put_beside_its_begin_and_end(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_transfer, "PART_BYTES", 5 * 2**20)
    (tmp_path / "big").write_bytes(b"x" * (11 * 2**20))
    store.put_file("big", tmp_path / "big")
    assert ANSWERED.take() == Requests(put=3 + 2, get=1)


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("CopyObject", "put"),
        ("UploadPart", "put"),
        ("ListMultipartUploads", "list"),
        ("HeadBucket", "get"),
        ("AbortMultipartUpload", "delete"),
    ],
)
def test_operations_count_as_stores_charge_them(operation: str, kind: str) -> None:
    assert kind_of(operation) == kind


@pytest.mark.parametrize(
    ("answer", "counted"),
    [(None, 0), (503, 0), (500, 0), (412, 1), (200, 1)],
)
def test_what_the_store_did_not_answer_or_failed_at_itself_is_not_charged(answer: int | None, counted: int) -> None:
    answered = Answered()
    said = None if answer is None else {"status_code": answer}
    answered.heard("response-received.s3.PutObject", response_dict=said, context={})
    assert answered.take() == Requests(put=counted)


def test_a_process_notes_what_it_asked_once_and_nothing_when_it_asked_nothing(store: Store, tmp_path: Path) -> None:
    store.put("a", b"")
    note_answered(tmp_path, "shards", "k")
    note_answered(tmp_path, "shards", "k")
    assert noted_requests(tmp_path) == (NotedRequests(stage="shards", key="k", requests=Requests(put=1)),)
