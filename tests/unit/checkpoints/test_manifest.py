from __future__ import annotations

from typing import Any

import pytest

from steelrail.checkpoints import manifest as m
from steelrail.checkpoints.layout import METADATA, StepId
from steelrail.errors import CheckpointError


def file(name: str, rank: int = 0, node: int = 0) -> m.CheckpointFile:
    return m.CheckpointFile(name=name, size_bytes=10, sha256="0" * 64, rank=rank, node_rank=node, host=f"node{node}")


def manifest(**changes: Any) -> m.Manifest:
    fields: dict[str, Any] = {
        "run": "demo",
        "key": "abc",
        "step": 4,
        "epoch": 2,
        "tokens": 400,
        "world_size": 2,
        "num_nodes": 2,
        "files": (file(METADATA), file("__0_0.distcp"), file("__1_0.distcp", 1, 1)),
        "parent_step": 2,
        "parent_epoch": 1,
        "created": 1.5,
        "versions": {"torch": "2"},
        "extra": {"position": 3, "rate": 0.25, "name": "x"},
        "rank_states": (m.pack_state(0, b"zero"), m.pack_state(1, b"one")),
    }
    return m.Manifest(**{**fields, **changes})


def test_manifest_makes_the_trip_with_types_kept() -> None:
    back = m.decode(m.encode(manifest()), "here")
    assert back == manifest()
    assert [type(value) for value in back.extra.values()] == [int, float, str]


def test_any_flipped_or_missing_byte_is_noticed() -> None:
    data = m.encode(manifest())
    start = data.index(b'"manifest"')
    for position in range(start, len(data), 7):
        torn = [data[:position], data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :]]
        for one in torn:
            try:
                assert m.decode(one, "here") == manifest()  # white space may change
            except CheckpointError as error:
                assert "manifest must be whole and valid" in str(error)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"null", b'{"manifest": 1, "sha256": ""}', b"[" * 100_000, b"\xff"]
)
def test_rubbish_is_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError, match="manifest must be whole and valid"):
        m.decode(data, "here")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, None),
        ({"run": "other"}, "is of run other, key abc"),
        ({"key": "other"}, "is of run demo, key other"),
        ({"epoch": 3}, "says 0000000004-00000003"),
        ({"files": (file(METADATA), file("../../etc/passwd"))}, "lists files of wrong or equal names"),
        ({"files": (file(METADATA), file(METADATA))}, "lists files of wrong or equal names"),
        ({"files": (file("__0_0.distcp"),)}, "lists no .metadata"),
    ],
)
def test_manifest_must_be_what_its_place_says(changes: dict[str, Any], fault: str | None) -> None:
    assert m.fault_of(manifest(**changes), "demo", "abc", StepId(4, 2)) == fault


def test_missing_and_short_files_are_named() -> None:
    sizes = {METADATA: 10, "__0_0.distcp": 10, "__1_0.distcp": 10, "other": 1}
    assert m.size_fault(manifest(), sizes) is None
    assert m.size_fault(manifest(), {**sizes, "__1_0.distcp": 9}) == "__1_0.distcp has 9 bytes, not 10"
    del sizes[METADATA]
    assert m.size_fault(manifest(), sizes) == ".metadata is missing"


def test_state_of_a_rank_is_given_only_to_a_world_of_the_same_size() -> None:
    assert m.rank_state(manifest(), 1, 2) == b"one"
    assert m.rank_state(manifest(), 1, 4) is None
    assert m.rank_state(manifest(rank_states=()), 1, 2) is None


def test_changed_state_of_a_rank_is_refused() -> None:
    wrong = m.pack_state(0, b"zero").model_copy(update={"base64": m.pack_state(0, b"other").base64})
    with pytest.raises(CheckpointError, match="state of rank 0 must be of its digest"):
        m.rank_state(manifest(rank_states=(wrong,)), 0, 2)


def test_taken_over_manifest_names_its_origin_and_new_keepers() -> None:
    new = m.rehome(manifest(), 5, {METADATA: 1, "__0_0.distcp": 1, "__1_0.distcp": 0}, {0: "a", 1: "b"})
    assert (new.id, new.parent_step, new.parent_epoch) == (StepId(4, 5), 4, 2)
    assert [(one.name, one.host) for one in new.files_of(0)] == [("__1_0.distcp", "a")]
    assert new.size_bytes == 30
    again = m.rehome(new, 7, {METADATA: 1, "__0_0.distcp": 1, "__1_0.distcp": 0}, {0: "a", 1: "b"})
    assert (again.id, again.trained, manifest().trained) == (StepId(4, 7), StepId(4, 2), StepId(4, 2))
