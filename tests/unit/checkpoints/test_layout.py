from __future__ import annotations

from pathlib import Path

import pytest

from steelrail.checkpoints import layout
from steelrail.checkpoints.layout import StepId


def test_folder_names_sort_like_their_checkpoints() -> None:
    which = [StepId(9, 11), StepId(10, 2), StepId(10, 3), StepId(200, 1)]
    assert sorted(which) == which
    assert sorted(one.folder for one in which) == [one.folder for one in which]


def test_folder_name_is_read_back() -> None:
    assert layout.parse_folder(StepId(120, 7).folder) == StepId(120, 7)


@pytest.mark.parametrize("name", ["", "1-1", "0000000001-00000001x", "../0000000001-00000001", "0000000001_00000001"])
def test_foreign_folder_is_none_of_ours(name: str) -> None:
    assert layout.parse_folder(name) is None


def test_fence_names_are_read_back_with_their_kind() -> None:
    names = [layout.fence_name(12), layout.fence_name(12, "resume"), layout.fence_name(12, "committed")]
    assert [layout.parse_fence(name) for name in names] == [(12, ""), (12, "resume"), (12, "committed")]
    assert layout.parse_fence("00000012.other.json") is None


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        (".metadata", True),
        ("__63_0.distcp", True),
        ("../__0_0.distcp", False),
        ("__0_0.distcp/x", False),
        ("manifest.json", False),
        ("__0_0.distcp\n", False),
    ],
)
def test_only_names_that_torch_gives_are_joined_to_paths(name: str, ours: bool) -> None:
    assert layout.is_checkpoint_file(name) is ours


def test_local_root_names_run_and_key() -> None:
    assert layout.local_root(Path("/nvme"), "demo", "abc") == Path("/nvme/demo/abc/checkpoints")
