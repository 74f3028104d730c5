"""Provenance: commit, versions, and code that no repository holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from steelrail.clients import provenance


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *identity, "-C", str(folder), *words], check=True, capture_output=True)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "src" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "src")
    git(tmp_path, "commit", "-q", "-m", "first")
    return folder


def test_the_commit_is_told_and_whether_the_code_differs_from_it(code: Path) -> None:
    commit, dirty = provenance.code_version(code)
    assert (len(commit or ""), dirty) == (40, False)
    (code / "__init__.py").write_text("x = 1\n")
    assert provenance.code_version(code) == (commit, True)


def test_changes_elsewhere_in_the_repository_are_not_changes_of_the_code(code: Path) -> None:
    (code.parents[1] / "notes.txt").write_text("x")
    assert provenance.code_version(code)[1] is False


def test_an_environment_inside_somebody_elses_repository_has_no_commit(code: Path) -> None:
    installed = code.parents[1] / ".venv" / "site-packages" / "steelrail"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert provenance.code_version(installed) == (None, False)


def test_without_git_there_is_no_commit(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert provenance.code_version(code) == (None, False)


def test_versions_are_those_installed_and_nothing_is_imported_for_them() -> None:
    look = "import sys; from steelrail.clients.provenance import versions; print(versions())"
    command = f"{look}; sys.exit('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert f"'python': '{sys.version.split()[0]}'" in answer.stdout
    assert "'pyarrow': " in answer.stdout
