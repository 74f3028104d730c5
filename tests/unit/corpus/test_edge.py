"""The corpus stage over real files and an S3 of moto."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steelrail.artifacts.corpus import CorpusManifest
from steelrail.artifacts.files import read_artifact
from steelrail.config import schema
from steelrail.corpus.edge import list_corpus, manifest_path, run_stage
from steelrail.errors import InputError, StoreError

MakeRun = Callable[..., schema.Run]


def parquet_bytes(*texts: str, column: str = "text", row_group_size: int = 2) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({column: list(texts)}), sink, row_group_size=row_group_size)
    return sink.getvalue()


def put(path: Path, *texts: str, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(parquet_bytes(*texts, **options))
    return path


def names(run: schema.Run) -> list[str]:
    return [Path(one.uri).name for one in list_corpus(run).objects]


def test_a_folder_a_glob_and_a_file_are_listed_sorted_and_once(tmp_path: Path, make_run: MakeRun) -> None:
    for name in ("b.parquet", "a.parquet", "sub/c.parquet"):
        put(tmp_path / "in" / name, "x")
    (tmp_path / "in" / "notes.txt").write_text("no")
    assert names(make_run(tmp_path / "in")) == ["a.parquet", "b.parquet", "c.parquet"]
    assert names(make_run(tmp_path / "in" / "*.parquet", tmp_path / "in" / "a.parquet")) == ["a.parquet", "b.parquet"]
    assert names(make_run(tmp_path / "in" / "**" / "c.*")) == ["c.parquet"]


def test_a_local_tag_follows_size_and_time(tmp_path: Path, make_run: MakeRun) -> None:
    run = make_run(put(tmp_path / "a.parquet", "x"))
    before = list_corpus(run).digest
    assert list_corpus(run).digest == before
    os.utime(tmp_path / "a.parquet", ns=(1, 1))
    assert list_corpus(run).digest != before


@pytest.mark.parametrize("path", ["nothing-*.parquet", "empty"])
def test_a_corpus_of_nothing_is_an_input_error(tmp_path: Path, make_run: MakeRun, path: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="at least one Parquet file, is empty"):
        list_corpus(make_run(tmp_path / path))


def test_a_path_that_is_not_there_is_named(tmp_path: Path, make_run: MakeRun) -> None:
    with pytest.raises(InputError, match=r"must be readable, is not \(No such file.*gone\.parquet"):
        list_corpus(make_run(tmp_path / "gone.parquet"))


def test_the_manifest_tells_size_digest_rows_and_row_groups(tmp_path: Path, make_run: MakeRun) -> None:
    file = put(tmp_path / "a.parquet", "one", "two", "three")
    run = make_run(file)
    manifest = run_stage(run, list_corpus(run))
    [one] = manifest.objects
    assert (one.uri, one.size_bytes, one.rows) == (str(file), file.stat().st_size, 3)
    assert one.digest == f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    assert [group.rows for group in one.row_groups] == [2, 1]
    assert manifest.provenance.inputs["content"] == manifest.content_digest
    assert read_artifact(manifest_path(run), CorpusManifest) == manifest


def test_the_run_folder_is_private(tmp_path: Path, make_run: MakeRun) -> None:
    run = make_run(put(tmp_path / "a.parquet", "x"))
    run_stage(run, list_corpus(run))
    assert (Path(run.results) / run.name).stat().st_mode & 0o777 == 0o700


def test_content_is_the_same_wherever_a_file_lies_and_whenever_it_was_touched(
    tmp_path: Path, make_run: MakeRun
) -> None:
    digests = set()
    for folder in ("x", "y"):
        run = make_run(put(tmp_path / folder / "a.parquet", "one", "two"))
        digests.add(run_stage(run, list_corpus(run)).content_digest)
    assert len(digests) == 1


def test_a_prefix_of_any_bucket_is_listed_with_etags(s3: Any, make_run: MakeRun) -> None:
    data = parquet_bytes("one", "two", "three")
    for key in ("en/b.parquet", "en/a.parquet", "en/x.txt", "english/c.parquet"):
        s3.put_object(Bucket="text", Key=key, Body=data)
    run = make_run("s3://text/en")
    manifest = run_stage(run, list_corpus(run))
    assert [one.uri for one in manifest.objects] == ["s3://text/en/a.parquet", "s3://text/en/b.parquet"]
    assert {one.digest for one in manifest.objects} == {f"etag:{hashlib.md5(data).hexdigest()}"}
    assert [one.rows for one in manifest.objects] == [3, 3]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("s3://text", ["a.parquet", "en/b.parquet", "en/deep/c.parquet"]),
        ("s3://text/en/", ["en/b.parquet", "en/deep/c.parquet"]),
        ("s3://text/en/b.parquet", ["en/b.parquet"]),
        ("s3://text/*.parquet", ["a.parquet"]),
        ("s3://text/en/**/*.parquet", ["en/b.parquet", "en/deep/c.parquet"]),
        ("s3://text/en/[a-b].parquet", ["en/b.parquet"]),
    ],
)
def test_s3_places_name_what_a_reader_expects(s3: Any, make_run: MakeRun, place: str, expected: list[str]) -> None:
    for key in ("a.parquet", "en/b.parquet", "en/deep/c.parquet"):
        s3.put_object(Bucket="text", Key=key, Body=b"x")
    assert [one.uri.removeprefix("s3://text/") for one in list_corpus(make_run(place)).objects] == expected


def test_an_empty_prefix_and_a_missing_bucket_are_told_apart(s3: Any, make_run: MakeRun) -> None:
    with pytest.raises(InputError, match="is empty"):
        list_corpus(make_run("s3://text/none"))
    with pytest.raises(StoreError, match="bucket"):
        list_corpus(make_run("s3://no-such-bucket/x"))


def nested(data: bytes) -> bytes:
    kind, sink = pa.string(), io.BytesIO()
    for _ in range(150):
        kind = pa.struct([("a", kind)])
    pq.write_table(pa.schema([("text", pa.string()), ("deep", kind)]).empty_table(), sink)
    return sink.getvalue()


def damaged_footer(data: bytes) -> bytes:
    return data[:-20] + b"\xff" * 12 + data[-8:]


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda data: b"text,more\n1,2\n3,4\n", "must be Parquet, is not"),
        (lambda data: b"", "must be Parquet, is not"),
        (lambda data: data[: len(data) // 2], "must be whole, is truncated"),
        (damaged_footer, "damaged"),
        (nested, "Parquet schema too deeply nested"),
    ],
)
@pytest.mark.parametrize("where", ["disk", "s3"])
def test_a_spoilt_file_is_named_with_its_fault(
    s3: Any, tmp_path: Path, make_run: MakeRun, spoil: Callable[[bytes], bytes], fault: str, where: str
) -> None:
    data = spoil(parquet_bytes("one", "two", "three"))
    (tmp_path / "bad.parquet").write_bytes(data)
    s3.put_object(Bucket="text", Key="bad.parquet", Body=data)
    run = make_run(tmp_path / "bad.parquet" if where == "disk" else "s3://text/bad.parquet")
    with pytest.raises(InputError, match=rf"(?s){fault}.*bad\.parquet"):
        run_stage(run, list_corpus(run))
    assert not manifest_path(run).exists()


def test_one_bad_file_among_many_stops_the_stage(tmp_path: Path, make_run: MakeRun) -> None:
    for index in range(20):
        put(tmp_path / f"{index:02d}.parquet", "x")
    put(tmp_path / "07.parquet", "x", column="body")
    run = make_run(tmp_path)
    with pytest.raises(InputError, match=r"column 'text' must be there once, is missing \(.*07\.parquet\)"):
        run_stage(run, list_corpus(run))


def test_a_corpus_without_rows_is_refused(tmp_path: Path, make_run: MakeRun) -> None:
    table = pa.table({"text": pa.array([], type=pa.string())})
    pq.write_table(table, tmp_path / "a.parquet")
    run = make_run(tmp_path)
    with pytest.raises(InputError, match="at least one row"):
        run_stage(run, list_corpus(run))


def test_a_file_that_changed_after_the_listing_is_refused(tmp_path: Path, make_run: MakeRun) -> None:
    run = make_run(put(tmp_path / "a.parquet", "x"))
    listing = list_corpus(run)
    put(tmp_path / "a.parquet", "x", "y")
    with pytest.raises(InputError, match="as it was listed, is changed since"):
        run_stage(run, listing)


def test_an_unreadable_file_is_an_input_error(
    tmp_path: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(tmp_path / "a.parquet", "x")
    run = make_run(file)
    listing = list_corpus(run)
    real = Path.open

    def refuse(path: Path, *words: Any, **options: Any) -> Any:
        if path == file:
            raise PermissionError(13, "Permission denied")
        return real(path, *words, **options)

    # Patched rather than chmod: root may read anything.
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match=r"must be readable, is not \(Permission denied\)"):
        run_stage(run, listing)
