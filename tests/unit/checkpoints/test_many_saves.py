"""Two hundred saves of 4 MB to a folder and a store: what a process holds stays what it was after the first twenty."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from steelrail.checkpoints.layout import StepId, local_root
from steelrail.clients.store import Store

# One save's state is 4 MB: a copy of it left behind now and then, or 45 kB at every save, would be more.
MAX_GROWTH_BYTES = 8_000_000
LAST = StepId(200, 1)


@pytest.fixture(scope="module")
def done(store_settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    nvme = tmp_path_factory.mktemp("nvme")
    argv = [sys.executable, str(Path(__file__).with_name("many_saves.py")), json.dumps(store_settings), str(nvme)]
    found = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"})
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout), nvme


def test_host_memory_is_flat_over_two_hundred_saves(done: tuple[dict[str, Any], Path]) -> None:
    early, late = done[0]["early"], done[0]["late"]
    assert late["bytes"] - early["bytes"] < MAX_GROWTH_BYTES


def test_no_descriptor_thread_or_object_is_left_behind_by_a_save(done: tuple[dict[str, Any], Path]) -> None:
    early, late = done[0]["early"], done[0]["late"]
    assert late["threads"] == early["threads"]
    # Connections to the store are kept, some more or fewer of them.
    assert late["descriptors"] - early["descriptors"] < 8
    # One object more at every save would be 180.
    assert late["objects"] - early["objects"] < 180
    assert done[0]["left_threads"] == 0


def test_only_the_newest_saves_are_left_on_nvme(done: tuple[dict[str, Any], Path]) -> None:
    folders = sorted(path.name for path in local_root(done[1], "run", "flat").iterdir())
    # The newest two, and one that was being sent when the last was saved.
    assert LAST.folder in folders and len(folders) <= 3


def test_only_what_retention_keeps_is_left_in_the_store(done: tuple[dict[str, Any], Path], store: Store) -> None:
    prefix = store.key("run", "flat") + "/"
    keys = {found.key.removeprefix(prefix) for found in store.list(prefix)}
    fences = {key for key in keys if key.startswith("fence/")}
    folders = {key.split("/")[1] for key in keys - fences}
    assert LAST.folder in folders and len(folders) == 2
    assert (len(fences), len(keys - fences)) == (3, 8)
    assert store.unfinished(prefix) == ()
