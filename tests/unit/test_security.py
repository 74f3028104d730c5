"""What holds for all of the source, and that every line of docs/security.md has the tests it names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
SOURCES = sorted((PROJECT / "src").rglob("*.py"))
# What runs code that was read, or hands text to a shell. Our unpickler of metadata is a class of its own.
FORBIDDEN = re.compile(
    r"(pickle|cPickle|cloudpickle|dill|marshal|shelve)\.(load|loads|open)|yaml\.(load|load_all|full_load|unsafe_load)"
    r"|os\.(system|popen|exec\w*|spawn\w*)|subprocess\.(getoutput|getstatusoutput)|eval|exec|joblib\.load"
)


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_nothing_that_was_read_is_run() -> None:
    found = [f"{path.name}: {name}" for path in SOURCES for name, _ in calls(path) if FORBIDDEN.fullmatch(name)]
    assert found == []


def test_yaml_is_read_by_safe_loaders_alone_at_one_place() -> None:
    named = {(path.name, name) for path in SOURCES for name in re.findall(r"\b\w*Loader\b", path.read_text())}
    assert {name for file, name in named if file == "yaml_files.py"} == {"CSafeLoader", "SafeLoader"}
    assert [path.name for path in SOURCES if "import yaml" in path.read_text()] == ["words.py", "yaml_files.py"]


def test_tensors_are_loaded_with_weights_only() -> None:
    loads = [call for path in SOURCES for name, call in calls(path) if name == "torch.load"]
    given = [{one.arg: ast.unparse(one.value) for one in call.keywords} for call in loads]
    assert [one for one in given if one.get("weights_only") != "True"] == []


def test_no_program_is_started_by_a_shell() -> None:
    given = [(path.name, one.arg) for path in SOURCES for _, call in calls(path) for one in call.keywords]
    assert [(name, argument) for name, argument in given if argument == "shell"] == []


def rows_of_the_list() -> list[list[str]]:
    lines = (PROJECT / "docs" / "security.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return rows[2:]


def test_every_line_of_the_security_list_names_tests_that_exist() -> None:
    named = [name for row in rows_of_the_list() for name in re.findall(r"`([\w/]+\.py)::(\w+)`", row[1])]
    assert all(re.search(r"\.py::", row[1]) for row in rows_of_the_list())
    assert [one for one in named if f"def {one[1]}(" not in (PROJECT / "tests" / one[0]).read_text()] == []
