import json
import os
import stat
from pathlib import Path

import pytest

from steelrail.artifacts.trainer import RunFolder
from steelrail.errors import InputError, NodeError
from steelrail.launch import freeze as freezing
from steelrail.launch.freeze import freeze, package_folder, read_frozen, require_private


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "demo" / "train" / "0123456789ab")


def test_what_was_frozen_is_read_back_whole(folder, demo):
    frozen = freeze(folder, demo, "3.99")
    run, again = read_frozen(folder)
    assert again == frozen
    assert run.train.model_dump() == demo.train.model_dump()
    assert Path(run.results).is_absolute()


def test_the_snapshot_is_the_package_that_runs(folder, demo):
    frozen = freeze(folder, demo, None)
    here = package_folder()
    copies = {path.relative_to(Path(frozen.code) / "steelrail"): path for path in Path(frozen.code).rglob("*.py")}
    assert set(copies) == {path.relative_to(here) for path in here.rglob("*.py")}
    assert all(path.read_bytes() == (here / name).read_bytes() for name, path in copies.items())


def test_equal_code_is_frozen_once_and_other_code_beside_it(folder, demo, monkeypatch, tmp_path):
    first = freeze(folder, demo, None)
    assert freeze(folder, demo, None).code == first.code
    other = tmp_path / "steelrail"
    other.mkdir()
    (other / "__init__.py").write_text("changed = True\n")
    monkeypatch.setattr(freezing, "package_folder", lambda: other)
    second = freeze(folder, demo, None)
    assert second.code_digest != first.code_digest
    assert (Path(first.code) / "steelrail" / "errors.py").exists()
    assert (Path(second.code) / "steelrail" / "__init__.py").read_text() == "changed = True\n"


def test_folders_and_files_are_closed_to_others(folder, demo):
    before = os.umask(0o022)
    try:
        freeze(folder, demo, None)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.root.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.root.parent.parent.stat().st_mode) == 0o700


def test_a_run_folder_that_others_may_write_in_is_refused(folder):
    folder.root.mkdir(parents=True)
    folder.root.chmod(0o770)
    with pytest.raises(NodeError, match="closed to others"):
        require_private(folder.root)


def test_a_torn_freeze_is_an_error_that_says_what_to_do(folder, demo):
    freeze(folder, demo, None)
    (folder.root / "frozen.json").write_text(json.dumps({"code": "x"})[:-1])
    with pytest.raises(InputError, match="submit the run again"):
        read_frozen(folder)
