"""A store of one test session, and a process that runs attempts on forked ranks (see ``world.py``)."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from steelrail.checkpoints import fence
from steelrail.checkpoints.layout import local_root
from steelrail.clients.store import Store
from steelrail.config import schema

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true"}
PROXIES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "AWS_PROFILE", "AWS_SESSION_TOKEN")


@pytest.fixture(scope="session")
def _environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in PROXIES:
            patch.delenv(name, raising=False)
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield


# One a module: moto's mock_aws in a module before, of the same process, empties this server too.
@pytest.fixture(scope="module")
def store_settings(_environment: None) -> Iterator[dict[str, Any]]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket="bucket")
    yield {"bucket": "bucket", "endpoint": endpoint, "retry_seconds": 2.0}
    server.stop()


@pytest.fixture
def store(store_settings: dict[str, Any]) -> Store:
    return Store.open(schema.Store(**store_settings))


@pytest.fixture(scope="session")
def _process(_environment: None) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(Path(__file__).with_name("world.py"))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@dataclass
class Model:
    """One key of one run: attempts on it, its objects and its NVMe folders."""

    process: subprocess.Popen[str]
    settings: dict[str, Any]
    store: Store
    nvme: Path
    key: str

    def attempt(self, steps: int, world: int = 4, **order: Any) -> list[dict[str, Any]]:
        """Run one attempt under a fresh fence; returns each rank's result."""
        ranks = self.attempt_of(fence.claim(self.store, "run", self.key), steps, world, **order)
        assert all(rank is not None for rank in ranks)
        return ranks

    def attempt_of(self, epoch: int, steps: int, world: int = 4, **order: Any) -> list[Any]:
        order = {"nodes": list(range(world // 2)), **order, "epoch": epoch, "steps": steps, "world": world}
        order.update(key=self.key, store=self.settings, nvme=str(self.nvme))
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        ranks: list[Any] = json.loads(self.process.stdout.readline())["ranks"]
        return ranks

    def local(self, node: int) -> Path:
        return local_root(self.nvme / f"node{node}", "run", self.key)

    def folders(self) -> list[str]:
        """Folders of the store that have a manifest."""
        prefix = self.store.key("run", self.key, "steps") + "/"
        names = (found.key.removeprefix(prefix).split("/") for found in self.store.list(prefix))
        return sorted(folder for folder, name in names if name == "manifest.json")


_keys = itertools.count()


@pytest.fixture
def model(_process: subprocess.Popen[str], store_settings: dict[str, Any], store: Store, tmp_path: Path) -> Model:
    return Model(_process, store_settings, store, tmp_path, f"key{next(_keys)}")
