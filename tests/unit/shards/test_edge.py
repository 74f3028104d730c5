"""The shards stage over real text: parts, store, gathering, repeats, and what goes wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer as HuggingFace

from steelrail.artifacts.corpus import CorpusManifest, CorpusObject, RowGroup
from steelrail.artifacts.files import read_artifact, results_folder, write_artifact
from steelrail.artifacts.requests import noted_requests
from steelrail.artifacts.shards import DataShard, PartManifest, ShardsManifest
from steelrail.clients.inputs import Inputs
from steelrail.clients.provenance import provenance
from steelrail.clients.store import Store
from steelrail.config import schema
from steelrail.errors import ConfigError, InputError, NodeError, StoreError
from steelrail.shards import edge, part
from steelrail.shards.edge import gather, make_part, manifest_path, part_path, tokenizer_digest
from steelrail.shards.part import shards_folder

MakeRun = Callable[..., schema.Run]
END = "<|end_of_text|>"
DOCUMENTS = [f"document {index}: " + "some words " * (index % 7) for index in range(40)]


def write_texts(path: Path, texts: list[Any], row_group_size: int = 8) -> Path:
    column = pa.array(texts, type=pa.binary()) if any(isinstance(text, bytes) for text in texts) else pa.array(texts)
    pq.write_table(pa.table({"text": column}), path, row_group_size=row_group_size)
    return path


def corpus_of(run: schema.Run, *uris: str | Path) -> CorpusManifest:
    """Write the corpus manifest that the corpus stage would."""
    inputs, objects = Inputs(run.store), []
    for uri in map(str, uris):
        found = inputs.look(uri)
        file, _ = inputs.open(found)
        with file:
            metadata = pq.ParquetFile(file).metadata
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        sizes = tuple(
            RowGroup(rows=group.num_rows, size_bytes=group.column(group.num_columns - 1).total_uncompressed_size)
            for group in groups
        )
        objects.append(
            CorpusObject(
                uri=uri,
                size_bytes=found.size_bytes,
                tag=found.tag,
                digest=inputs.digest(found),
                rows=metadata.num_rows,
                row_groups=sizes,
            )
        )
    manifest = CorpusManifest(
        run=run.name,
        key="c",
        text_column="text",
        objects=tuple(objects),
        num_rows=sum(one.rows for one in objects),
        size_bytes=1,
        content_digest=json.dumps([one.digest for one in objects]),
        provenance=provenance("corpus", "c", run, {}, 0.0),
    )
    write_artifact(results_folder(run) / "corpus" / "manifest.json", manifest)
    return manifest


def make_all(run: schema.Run) -> ShardsManifest:
    for number in range(run.shards.parts):
        make_part(run, number)
    return gather(run)


def documents(run: schema.Run, shards: tuple[DataShard, ...], split: str) -> list[str]:
    """Return the text of every document of a split, from the files on NVMe, in order."""
    tokenizer = HuggingFace.from_file(run.shards.tokenizer)
    rows = []
    for shard in shards:
        if shard.split == split:
            batch = pa.ipc.open_file(str(shards_folder(run) / shard.name)).get_batch(0)
            rows += batch.column(0).to_pylist()
    assert all(row[-1] == 0 and 0 not in row[:-1] for row in rows)
    return tokenizer.decode_batch([row[:-1] for row in rows])


def files(run: schema.Run) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in shards_folder(run).glob("part-*")}


@pytest.fixture
def texts_file(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "a.parquet", DOCUMENTS)


def test_every_document_comes_out_once_in_corpus_order(s3: Any, make_run: MakeRun, texts_file: Path) -> None:
    run = make_run(texts_file, parts=3, shard_tokens=1000, heldout_per_million=200_000)
    corpus_of(run, texts_file)
    manifest = make_all(run)
    train, heldout = (documents(run, manifest.data_shards, split) for split in ("train", "heldout"))
    assert sorted(train + heldout) == sorted(DOCUMENTS)
    assert train == [text for text in DOCUMENTS if text in set(train)]
    assert len(heldout) > 2
    assert (manifest.rows, manifest.documents, manifest.dropped) == (40, 40, {})
    assert manifest.text_bytes == sum(map(len, DOCUMENTS))


@pytest.mark.parametrize("parts", [2, 7])
def test_the_number_of_parts_changes_files_but_not_the_tokens_in_their_order(
    s3: Any, make_run: MakeRun, texts_file: Path, parts: int
) -> None:
    run = make_run(texts_file, parts=parts)
    corpus_of(run, texts_file)
    manifest = make_all(run)
    one = make_run(texts_file, parts=1)
    assert documents(run, manifest.data_shards, "train") == documents(one, make_all(one).data_shards, "train")


def test_parts_without_row_groups_make_nothing_and_stop_nobody(s3: Any, make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("x", parts=4, heldout_per_million=0)
    corpus_of(run, write_texts(tmp_path / "a.parquet", DOCUMENTS, row_group_size=100))
    parts = [make_part(run, number) for number in range(4)]
    assert sorted(len(one.data_shards) for one in parts) == [0, 0, 0, 1]
    assert gather(run).documents == 40


def test_the_store_holds_the_same_bytes_as_nvme(s3: Any, store: Store, make_run: MakeRun, texts_file: Path) -> None:
    run = make_run(texts_file)
    corpus_of(run, texts_file)
    manifest = make_all(run)
    assert {shard.name: store.get(shard.object_key) for shard in manifest.data_shards} == files(run)
    keys = {shard.object_key.rsplit("/", 1)[0] for shard in manifest.data_shards}
    assert keys == {f"steelrail/r/shards/{manifest.key}"}


def test_a_repeat_is_identical_to_the_byte(s3: Any, store: Store, make_run: MakeRun, texts_file: Path) -> None:
    run = make_run(texts_file, shard_tokens=1000)
    corpus_of(run, texts_file)
    first, before = make_all(run), files(run)
    for found in list(store.list("steelrail/")):
        store.delete(found.key)
    for path in shards_folder(run).glob("part-*"):
        path.unlink()
    again = make_all(run)
    assert files(run) == before
    assert (again.data_shards, again.data_digest) == (first.data_shards, first.data_digest)


def test_what_the_store_holds_is_not_tokenised_again_and_its_job_stays_on_the_bill(
    s3: Any, make_run: MakeRun, texts_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(texts_file)
    corpus_of(run, texts_file)
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    first = [make_part(run, number) for number in range(2)]
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setattr(edge, "tokenise_part", lambda *words: pytest.fail("tokenised again"))
    second = [make_part(run, number) for number in range(2)]
    assert [one.data_shards for one in second] == [one.data_shards for one in first]
    assert {(one.job_id, one.earlier_job_ids) for one in second} == {("42", ("41",))}
    assert gather(run).job_ids == ("41", "42")


def test_a_part_whose_shard_is_gone_from_the_store_is_made_again(
    s3: Any, store: Store, make_run: MakeRun, texts_file: Path
) -> None:
    run = make_run(texts_file)
    corpus_of(run, texts_file)
    made = make_part(run, 0)
    store.delete(made.data_shards[0].object_key)
    assert make_part(run, 0).data_shards == made.data_shards
    assert store.head(made.data_shards[0].object_key) is not None


@pytest.mark.parametrize("torn", [b"", b"{}", b"\xff"])
def test_a_torn_part_in_the_store_is_made_again(
    s3: Any, store: Store, make_run: MakeRun, texts_file: Path, torn: bytes
) -> None:
    run = make_run(texts_file)
    corpus_of(run, texts_file)
    made = make_part(run, 1)
    store.put(edge.part_key(store, run, made.key, 1), torn)
    assert make_part(run, 1).data_shards == made.data_shards


@pytest.mark.parametrize("moment", ["put_file", "put"])
def test_a_part_killed_at_any_moment_leaves_nothing_that_counts(
    s3: Any, make_run: MakeRun, texts_file: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    run = make_run(texts_file, shard_tokens=1000)
    corpus_of(run, texts_file)

    def die(*words: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Store, moment, die)
        with pytest.raises(KeyboardInterrupt):
            make_part(run, 0)
    assert not part_path(run, 0).exists()
    assert make_all(run).documents == 40


def test_dropped_rows_are_counted_by_reason_and_the_rest_is_kept(s3: Any, make_run: MakeRun, tmp_path: Path) -> None:
    texts = [b"good", None, b"", b"\xff", b"x" * 101, "zwölf".encode(), None]
    run = make_run("x", max_document_bytes=100, max_dropped_share=0.8, heldout_per_million=0)
    corpus_of(run, write_texts(tmp_path / "a.parquet", texts))
    manifest = make_all(run)
    assert manifest.dropped == {"empty": 1, "invalid_utf8": 1, "null": 2, "too_long": 1}
    assert (manifest.rows, manifest.documents) == (7, 2)
    assert documents(run, manifest.data_shards, "train") == ["good", "zwölf"]


def test_requests_of_every_part_are_noted_those_of_a_part_that_failed_too(
    s3: Any, make_run: MakeRun, texts_file: Path
) -> None:
    run = make_run(texts_file, parts=1)
    corpus_of(run, texts_file)
    make_part(run, 0)
    (made,) = noted_requests(results_folder(run))
    assert (made.stage, made.requests.put >= 2) == ("shards", True)
    gone = run.model_copy(update={"store": run.store.model_copy(update={"bucket": "gone"})})
    with pytest.raises(StoreError):
        make_part(gone, 0)
    (_, failed) = noted_requests(results_folder(run))
    assert (failed.key, failed.requests.get) == (made.key, 1)


def test_too_many_dropped_rows_stop_the_stage_and_leave_no_manifest(s3: Any, make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("x", max_dropped_share=0.4)
    corpus_of(run, write_texts(tmp_path / "a.parquet", ["good", None]))
    with pytest.raises(InputError, match=r"share of rows dropped must be at most 0.4, is 0.5000 \(1 null\)"):
        make_all(run)
    assert not manifest_path(run).exists()


def test_a_document_cannot_end_itself(s3: Any, make_run: MakeRun, tmp_path: Path) -> None:
    texts = [f"before{END}after", END, f"{END}{END}", "plain"]
    run = make_run("x", heldout_per_million=0)
    corpus_of(run, write_texts(tmp_path / "a.parquet", texts))
    manifest = make_all(run)
    assert documents(run, manifest.data_shards, "train") == texts


def test_shards_are_cut_at_their_limit_and_a_long_document_exceeds_it_alone(
    s3: Any, make_run: MakeRun, tmp_path: Path
) -> None:
    texts = [*("word " * 100 for _ in range(30)), "word " * 3000, "tail"]
    run = make_run("x", parts=1, shard_tokens=1000, heldout_per_million=0)
    corpus_of(run, write_texts(tmp_path / "a.parquet", texts))
    shards = make_all(run).data_shards
    assert [shard.documents for shard in shards if shard.tokens > 1000] == [1]
    assert all(shard.tokens > 800 for shard in shards[:3])
    assert sum(shard.documents for shard in shards) == 32


def test_local_and_stored_corpora_give_the_same_data(s3: Any, make_run: MakeRun, texts_file: Path) -> None:
    s3.put_object(Bucket="text", Key="en/a.parquet", Body=texts_file.read_bytes())
    digests = []
    for uri in (str(texts_file), "s3://text/en/a.parquet"):
        run = make_run(uri)
        corpus_of(run, uri)
        digests.append(make_all(run).data_digest)
    assert digests[0] == digests[1]


def test_a_file_changed_since_the_corpus_stage_is_refused(s3: Any, make_run: MakeRun, texts_file: Path) -> None:
    run = make_run(texts_file)
    corpus_of(run, texts_file)
    write_texts(texts_file, list(reversed(DOCUMENTS)))
    with pytest.raises(InputError, match="as the corpus stage saw it, is changed since"):
        make_part(run, 0)


def test_a_file_that_was_only_touched_is_accepted(s3: Any, make_run: MakeRun, texts_file: Path) -> None:
    run = make_run(texts_file)
    corpus_of(run, texts_file)
    os.utime(texts_file, ns=(1, 1))
    assert make_all(run).documents == 40


def test_an_object_replaced_in_its_bucket_is_refused(s3: Any, make_run: MakeRun, texts_file: Path) -> None:
    s3.put_object(Bucket="text", Key="a.parquet", Body=texts_file.read_bytes())
    run = make_run("s3://text/a.parquet")
    corpus_of(run, "s3://text/a.parquet")
    s3.put_object(Bucket="text", Key="a.parquet", Body=write_texts(texts_file, ["new"] * 9).read_bytes())
    with pytest.raises(InputError, match="changed since"):
        make_part(run, 0)


def test_a_store_that_fails_while_a_corpus_is_read_is_a_store_error_not_a_damaged_file(
    s3: Any, make_run: MakeRun, texts_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put_object(Bucket="text", Key="a.parquet", Body=texts_file.read_bytes())
    run = make_run("s3://text/a.parquet")
    corpus_of(run, "s3://text/a.parquet")

    def away(*words: Any) -> bytes:
        raise StoreError("store must be reachable, is away")

    monkeypatch.setattr(Store, "get_range", away)
    with pytest.raises(StoreError, match="is away"):
        make_part(run, 0)


def test_leftovers_of_a_killed_job_are_removed(s3: Any, make_run: MakeRun, texts_file: Path) -> None:
    run = make_run(texts_file)
    corpus_of(run, texts_file)
    shards_folder(run).mkdir(parents=True)
    mine, other = (shards_folder(run) / f".part-0000{number}-00000.train.arrow.ab12" for number in (0, 1))
    for path in (mine, other):
        path.write_bytes(b"half")
    make_part(run, 0)
    assert (mine.exists(), other.exists()) == (False, True)


@pytest.mark.parametrize("number", [-1, 2])
def test_a_part_that_the_run_does_not_have_is_refused(
    s3: Any, make_run: MakeRun, texts_file: Path, number: int
) -> None:
    run = make_run(texts_file)
    corpus_of(run, texts_file)
    with pytest.raises(ConfigError, match="part must be from 0 to 1"):
        make_part(run, number)


def test_a_missing_part_and_a_missing_corpus_name_the_stage_to_run(
    s3: Any, make_run: MakeRun, texts_file: Path
) -> None:
    run = make_run(texts_file)
    with pytest.raises(InputError, match=r"corpus manifest must be there, is missing .*: run steelrail corpus"):
        make_part(run, 0)
    corpus_of(run, texts_file)
    make_part(run, 0)
    with pytest.raises(InputError, match=r"manifest of a part must be there, is missing \(.*01\.json\)"):
        gather(run)


def test_parts_of_an_earlier_key_are_not_gathered(s3: Any, make_run: MakeRun, texts_file: Path) -> None:
    run = make_run(texts_file)
    corpus_of(run, texts_file)
    make_all(run)
    other = make_run(texts_file, heldout_per_million=1)
    with pytest.raises(InputError, match="part 0 must be of shards key"):
        gather(other)


def test_a_missing_tokenizer_is_an_input_error(s3: Any, make_run: MakeRun, texts_file: Path, tmp_path: Path) -> None:
    run = make_run(texts_file, tokenizer=str(tmp_path / "none.json"))
    corpus_of(run, texts_file)
    with pytest.raises(InputError, match=r"tokenizer file must be readable, is not \(No such file"):
        make_part(run, 0)
    with pytest.raises(InputError, match="tokenizer file"):
        tokenizer_digest(tmp_path / "none.json")


def test_nvme_that_is_not_mounted_or_full_is_a_node_error(
    s3: Any, make_run: MakeRun, texts_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(texts_file)
    corpus_of(run, texts_file)

    def full(*words: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(part, "write_packed", full)
        with pytest.raises(NodeError, match="is full"):
            make_part(run, 0)
    assert not list(shards_folder(run).glob("*"))
    (tmp_path / "nvme").rename(tmp_path / "gone")
    with pytest.raises(NodeError, match="NVMe folder must be mounted"):
        make_part(run, 0)


def test_artifacts_are_read_back_as_they_were_returned(s3: Any, make_run: MakeRun, texts_file: Path) -> None:
    run = make_run(texts_file)
    corpus_of(run, texts_file)
    made = make_part(run, 0)
    make_part(run, 1)
    assert read_artifact(part_path(run, 0), PartManifest) == made
    assert gather(run) == read_artifact(manifest_path(run), ShardsManifest)


def test_the_key_follows_tokenizer_content_and_settings_and_not_placement(
    s3: Any, make_run: MakeRun, texts_file: Path, tmp_path: Path
) -> None:
    def key(**shards: Any) -> str:
        run = make_run(texts_file, **shards)
        return edge.combined_key(run, corpus_of(run, texts_file), tokenizer_digest(run.shards.tokenizer))

    other = tmp_path / "other.json"
    other.write_bytes(Path(make_run("x").shards.tokenizer).read_bytes() + b"\n")
    same = key()
    assert key(partition="other", cpus=2, minutes=5) == same
    assert key(tokenizer=str(other)) != same
    assert key(shard_tokens=5000) != same
    write_texts(texts_file, DOCUMENTS[:-1])
    assert key() != same


def test_real_texts_tokens_are_what_the_library_makes_of_them(
    s3: Any, make_run: MakeRun, sample: Path, tmp_path: Path
) -> None:
    texts = pq.read_table(sample, columns=["text"])["text"].to_pylist()[::10]
    run = make_run("x", shard_tokens=100_000)
    corpus_of(run, write_texts(tmp_path / "a.parquet", texts, row_group_size=20))
    manifest = make_all(run)
    tokenizer = HuggingFace.from_file(run.shards.tokenizer)
    expected = [np.array([*one.ids, 0], dtype=np.uint32) for one in tokenizer.encode_batch(texts)]
    assert manifest.train_tokens + manifest.heldout_tokens == sum(map(len, expected))
    found = []
    for shard in manifest.data_shards:
        column = pa.ipc.open_file(str(shards_folder(run) / shard.name)).get_batch(0).column(0)
        found += [row.values.to_numpy() for row in column]
    assert sorted(map(bytes, found)) == sorted(map(bytes, expected))
