"""The listing and its digests."""

from __future__ import annotations

import pytest

from steelrail.artifacts.corpus import CorpusObject, ListedObject, RowGroup
from steelrail.corpus.listing import content_digest, listing_digest, make_listing
from steelrail.errors import InputError

A = ListedObject(uri="/a.parquet", size_bytes=10, tag="1")
B = ListedObject(uri="/b.parquet", size_bytes=20, tag="1")


def corpus_object(uri: str = "/a.parquet", digest: str = "sha256:1", rows: int = 3) -> CorpusObject:
    groups = (RowGroup(rows=rows, size_bytes=7),)
    return CorpusObject(uri=uri, size_bytes=10, tag="t", digest=digest, rows=rows, row_groups=groups)


def test_objects_are_sorted_and_each_is_listed_once() -> None:
    listing = make_listing([B, A, B], ("x",), 10)
    assert listing.objects == (A, B)


def test_the_digest_does_not_depend_on_the_order_found() -> None:
    assert make_listing([B, A], ("x",), 10).digest == make_listing([A, B], ("x",), 10).digest


@pytest.mark.parametrize("change", [{"uri": "/c.parquet"}, {"size_bytes": 11}, {"tag": "2"}])
def test_the_digest_changes_with_every_field(change: dict[str, object]) -> None:
    assert listing_digest([A.model_copy(update=change)]) != listing_digest([A])


def test_an_empty_corpus_is_an_input_error_that_names_the_paths() -> None:
    with pytest.raises(InputError, match=r"corpus must be at least one Parquet file, is empty \(x, y\)"):
        make_listing([], ("x", "y"), 10)


def test_too_many_objects_are_refused() -> None:
    with pytest.raises(InputError, match="at most 1 objects, is 2"):
        make_listing([A, B], ("x",), 1)


def test_content_does_not_depend_on_where_objects_lie() -> None:
    assert content_digest([corpus_object("/a")], "text") == content_digest([corpus_object("s3://b/a")], "text")


@pytest.mark.parametrize("other", [corpus_object(digest="sha256:2"), corpus_object(rows=4)])
def test_content_changes_with_what_is_in_the_objects(other: CorpusObject) -> None:
    assert content_digest([other], "text") != content_digest([corpus_object()], "text")


def test_content_changes_with_the_column_and_with_the_order() -> None:
    one, two = corpus_object(digest="sha256:1"), corpus_object(digest="sha256:2")
    assert content_digest([one], "text") != content_digest([one], "body")
    assert content_digest([one, two], "text") != content_digest([two, one], "text")
