from pathlib import Path

import pytest

from steelrail.artifacts.cost import CategoryCost
from steelrail.artifacts.files import read_artifact, write_artifact, write_whole
from steelrail.errors import InputError


def test_an_artifact_comes_back_as_it_went(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "cost.json"
    write_artifact(path, CategoryCost(gpu_seconds=1.5, micro_usd=3))
    assert CategoryCost(gpu_seconds=1.5, micro_usd=3) == read_artifact(path, CategoryCost)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_whole(path, b"old")
    with pytest.raises(TypeError):
        write_whole(path, "not bytes")  # type: ignore[arg-type]
    assert (b"old", [path]) == (path.read_bytes(), list(tmp_path.iterdir()))


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"gpu_seconds": 1}', b'{"gpu_seconds": 1, "micro_usd": 2, "x": 3}', b"\xff"]
)
def test_a_torn_or_foreign_artifact_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match="CategoryCost must be valid"):
        read_artifact(path, CategoryCost)


def test_a_missing_artifact_names_its_stage_as_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run the stage that makes it"):
        read_artifact(tmp_path / "a.json", CategoryCost)
