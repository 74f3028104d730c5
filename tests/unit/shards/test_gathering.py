"""Parts to one manifest."""

from __future__ import annotations

from typing import Any

import pytest

from steelrail.artifacts.files import Provenance
from steelrail.artifacts.shards import DataShard, PartManifest, TokenizerIdentity
from steelrail.errors import InputError
from steelrail.shards.gathering import check_dropped, check_parts, data_digest, gather_parts

PROVENANCE = Provenance(
    stage="shards",
    key="k",
    command=(),
    started=0.0,
    ended=1.0,
    host="h",
    user="u",
    commit=None,
    dirty=False,
    versions={},
    inputs={},
    config_digest="",
)
TOKENIZER = TokenizerIdentity(digest="d", format="huggingface", vocab_size=10, end_of_text_id=0)


def shard(part: int, index: int, split: Any = "train", tokens: int = 10) -> DataShard:
    name = f"part-{part:05d}-{index:05d}.{split}.arrow"
    sha = f"{part}{index}"
    return DataShard(
        name=name, split=split, part=part, documents=1, tokens=tokens, size_bytes=1, sha256=sha, object_key=name
    )


def part(number: int, *shards: DataShard, **changes: Any) -> PartManifest:
    fields: dict[str, Any] = {
        "run": "r",
        "key": "k",
        "part": number,
        "tokenizer": TOKENIZER,
        "data_shards": shards,
        "rows": 10,
        "documents": 9,
        "text_bytes": 100,
        "dropped": {"null": 1},
        "seconds": 1.0,
        "job_id": str(100 + number),
        "provenance": PROVENANCE,
    }
    return PartManifest(**{**fields, **changes})


PARTS = [part(0, shard(0, 0), shard(0, 1, "heldout", 3)), part(1, shard(1, 0), dropped={"empty": 2, "null": 1})]


def test_counts_add_up_and_shards_keep_their_order() -> None:
    whole = gather_parts(PARTS, PROVENANCE)
    assert (whole.rows, whole.documents, whole.text_bytes) == (20, 18, 200)
    assert (whole.train_tokens, whole.heldout_tokens) == (20, 3)
    assert whole.dropped == {"empty": 2, "null": 2}
    assert [one.sha256 for one in whole.data_shards] == ["00", "01", "10"]


def test_every_job_that_worked_is_on_the_bill_once() -> None:
    parts = [part(0, job_id="7", earlier_job_ids=("5", "6")), part(1, job_id="5"), part(2, job_id=None)]
    assert gather_parts(parts, PROVENANCE).job_ids == ("5", "6", "7")


def test_the_data_digest_changes_with_tokens_split_and_order() -> None:
    one, two = shard(0, 0), shard(0, 1)
    others = [(two, one), (one,), (one, two.model_copy(update={"split": "heldout"})), (one, shard(0, 1, tokens=11))]
    digests = {data_digest((one, two)), *map(data_digest, others)}
    assert len(digests) == 5


def test_the_data_digest_does_not_depend_on_names_or_places() -> None:
    moved = shard(0, 0).model_copy(
        update={"name": "part-00009-00009.train.arrow", "object_key": "elsewhere", "part": 9}
    )
    assert data_digest([moved]) == data_digest([shard(0, 0)])


def test_a_part_of_another_key_is_refused() -> None:
    with pytest.raises(InputError, match="part 1 must be of shards key k, is old"):
        check_parts([part(0), part(1, key="old")], "k", [10, 10], "parts")


def test_a_part_that_did_not_read_all_its_rows_is_refused() -> None:
    with pytest.raises(InputError, match="part 1 must be made of 11 rows, is 10"):
        check_parts([part(0), part(1)], "k", [10, 11], "parts")


def test_the_share_dropped_may_reach_its_limit_and_not_pass_it() -> None:
    whole = gather_parts(PARTS, PROVENANCE)
    check_dropped(whole, 0.2, "corpus")
    with pytest.raises(InputError, match=r"at most 0.19, is 0.2000 \(2 empty, 2 null\)"):
        check_dropped(whole, 0.19, "corpus")


def test_nothing_left_to_train_on_is_refused() -> None:
    with pytest.raises(InputError, match="training tokens must be at least 1, is 0"):
        check_dropped(gather_parts([part(0, shard(0, 0, "heldout"))], PROVENANCE), 1.0, "corpus")
