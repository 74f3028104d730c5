"""Data shard files: layout, cutting, and bytes that repeat."""

from __future__ import annotations

import io

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from steelrail.shards.write import SCHEMA, Packed, Packer, shard_name, write_packed


def tokens(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint32)


def file_of(packed: Packed) -> bytes:
    sink = pa.BufferOutputStream()
    write_packed(sink, packed)
    return sink.getvalue().to_pybytes()


def packed(*documents: np.ndarray, shard_tokens: int = 100) -> Packed:
    packer = Packer(shard_tokens)
    for document in documents:
        packer.add(document, 9)
    return packer.take()


def test_each_document_is_a_row_that_ends_with_end_of_text() -> None:
    data = file_of(packed(tokens(1, 2), tokens(3), tokens(4, 5, 6)))
    reader = pa.ipc.open_file(data)
    assert reader.num_record_batches == 1
    assert reader.schema == SCHEMA
    assert reader.get_batch(0).column(0).to_pylist() == [[1, 2, 9], [3, 9], [4, 5, 6, 9]]


def test_the_values_are_one_flat_array_that_needs_no_copy() -> None:
    batch = pa.ipc.open_file(file_of(packed(tokens(1, 2), tokens(3)))).get_batch(0)
    assert batch.column(0).values.to_numpy(zero_copy_only=True).tolist() == [1, 2, 9, 3, 9]
    assert batch.column(0).null_count == batch.column(0).values.null_count == 0


def test_polars_opens_it() -> None:
    frame = pl.read_ipc(io.BytesIO(file_of(packed(tokens(1, 2), tokens(3)))))
    assert frame["tokens"].to_list() == [[1, 2, 9], [3, 9]]


def test_the_same_tokens_give_the_same_bytes_however_they_were_gathered() -> None:
    documents = [np.arange(size, dtype=np.uint32) for size in (5, 60, 1, 0)]
    roomy, tight = packed(*documents, shard_tokens=1000), packed(*documents, shard_tokens=70)
    assert file_of(roomy) == file_of(tight)


def test_a_packer_is_full_at_its_limit_and_not_before() -> None:
    packer = Packer(10)
    packer.add(tokens(1, 2, 3, 4), 9)
    assert (packer.fits(5), packer.fits(6), packer.num_tokens) == (True, False, 5)


def test_a_document_over_the_limit_gets_a_shard_of_its_own() -> None:
    packer = Packer(10)
    assert packer.fits(1000)
    packer.add(np.arange(30, dtype=np.uint32), 9)
    assert not packer.fits(1)
    assert packer.take().tokens.tolist() == [*range(30), 9]


def test_what_was_taken_is_gone() -> None:
    packer = Packer(10)
    packer.add(tokens(1), 9)
    packer.take()
    packer.add(tokens(2), 9)
    assert packer.take().tokens.tolist() == [2, 9]


def test_names_sort_in_the_order_of_parts_and_shards() -> None:
    names = [shard_name(part, index, "train") for part in (0, 2, 10) for index in (0, 3, 12)]
    assert names == sorted(names)
    assert names[1] == "part-00000-00003.train.arrow"


@pytest.mark.parametrize("count", [0, 1])
def test_empty_documents_are_rows_of_one_token(count: int) -> None:
    data = file_of(packed(*[tokens()] * count))
    assert pa.ipc.open_file(data).get_batch(0).column(0).to_pylist() == [[9]] * count
