"""Steelrail as a library: README's own lines in an empty folder, and inside another Slurm job."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dev_cluster import Cluster, Project

PROJECT = Path(__file__).resolve().parents[2]
SMALL = (
    ("nodes: 4, gpus_per_node: 16, ranks_per_node: 2", "nodes: 1, gpus_per_node: 16, ranks_per_node: 2"),
    ("steps: 200", "steps: 10"),
    ("every_steps: 25", "every_steps: 5"),
    ("heldout_every_steps: 50", "heldout_every_steps: 10"),
)


def readme_lines() -> str:
    """The Python of README."""
    (block,) = re.findall(r"```python\n(.*?)```", (PROJECT / "README.md").read_text(), flags=re.DOTALL)
    return str(block)


@pytest.fixture(scope="module")
def installed(project: Project) -> Iterator[Path]:
    """An environment with `pip install .`; what Steelrail depends on comes from the project's own environment."""
    venv = project.folder.parent / f"{project.folder.name}-venv"
    dependencies = (PROJECT / ".venv").resolve() / "lib/python3.11/site-packages"
    packages = venv / "lib/python3.11/site-packages"
    steps = [
        ["/usr/bin/python3", "-m", "venv", str(venv)],
        ["sh", "-c", f"echo {dependencies} >{packages}/dependencies.pth"],
        [f"{venv}/bin/pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", "."],
    ]
    for step in steps:
        done = project.run("env", "-u", "PYTHONPATH", *step)
        assert done.returncode == 0, done.stdout + done.stderr
    yield venv
    shutil.rmtree(venv)


def empty_folder(cluster: Cluster, project: Project, name: str) -> Path:
    """A folder with a run file, its data and its tokenizer, and none of Steelrail's sources."""
    project.write_run(name, *SMALL)
    folder = cluster.folder / name
    for path in (f"config/{name}.yaml", "data/sample.parquet", "config/tokenizers/demo-8192.json"):
        target = folder / path.replace(f"{name}.yaml", "demo.yaml")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(project.folder / path, target)
    shutil.copytree(project.folder / "config/prices", folder / "config/prices")
    (folder / "lines.py").write_text(readme_lines())
    subprocess.run(["chown", "-R", "steelrail:steelrail", str(cluster.folder)], check=True)
    return folder


def run_lines(project: Project, installed: Path, folder: Path) -> str:
    done = project.run("env", "-u", "PYTHONPATH", "-C", str(folder), f"{installed}/bin/python", "lines.py")
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    return done.stdout


def test_the_lines_of_readme_train_a_model_in_an_empty_folder(
    cluster: Cluster, project: Project, installed: Path
) -> None:
    folder = empty_folder(cluster, project, "library")
    said = run_lines(project, installed, folder)
    job, *_ = said.split()
    assert job.isdigit() and re.search(r"^10 s3://steelrail/", said, flags=re.MULTILINE), said
    assert (folder / "results/library/train/record.json").exists()
    # Once more: the run is there already, and nothing is submitted.
    again = run_lines(project, installed, folder)
    model, money = said.splitlines()[-2:]
    assert again.splitlines()[-2] == model
    # The shard jobs, which found all done, were paid twice.
    assert int(money.split()[0]) <= int(again.splitlines()[-1].split()[0]) < 1.1 * int(money.split()[0])


def test_the_same_lines_work_inside_a_slurm_job(cluster: Cluster, project: Project, installed: Path) -> None:
    folder = empty_folder(cluster, project, "inside")
    job = cluster.submit(
        f"cd {folder} && exec {installed}/bin/python lines.py",
        "--partition=cpu",
        "--mem-per-cpu=1000",
        "--cpus-per-task=2",
    )
    cluster.await_state(job, "COMPLETED", 280)
    assert "10 s3://steelrail/" in cluster.log(job)
    assert (folder / "results/inside").stat().st_mode & 0o077 == 0
