"""Fixtures of the real four-host Slurm of slurm/dev, brought up once a session and left running."""

from __future__ import annotations

import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

# Helpers beside the tests are no package under pytest's importlib mode.
sys.path.insert(0, str(Path(__file__).parent))

from dev_cluster import HOME, PROJECT, SCRIPT, Cluster, Project, copy_project, run, wait_until


@pytest.fixture(scope="session")
def dev_cluster() -> None:
    """Fails, never skips, where the cluster cannot be had."""
    run([str(SCRIPT), "up"], PROJECT)


@pytest.fixture
def cluster(dev_cluster: None) -> Iterator[Cluster]:
    """A healthy cluster without jobs; whatever the test cut, slowed or left running is mended afterwards."""
    name = uuid.uuid4().hex[:8]
    run([str(SCRIPT), "as-user", "mkdir", "--parents", "-m", "0700", f"{HOME}/tests/{name}"], PROJECT)
    cluster = Cluster(HOME / "tests" / name)
    yield cluster
    cluster.user("scancel", "--user=steelrail")
    cluster.control("spare", "down")
    cluster.control("up")
    wait_until(lambda: not cluster.user("squeue", "--noheader").strip(), 90, "no job left in the queue")


@pytest.fixture(scope="module")
def project(dev_cluster: None) -> Iterator[Project]:
    """The user's own copy of the project, new for each module."""
    folder = HOME / "tests" / f"project-{uuid.uuid4().hex[:8]}"
    run([str(SCRIPT), "as-user", "mkdir", "--parents", "-m", "0700", str(folder)], PROJECT)
    yield copy_project(folder)
    shutil.rmtree(folder)
