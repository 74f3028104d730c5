"""The chain without Slurm: the demo on this host alone, by submitit's local executor, with an S3 server of its own.

usage: python scripts/demo_local.py [STEPS] [RESULTS]
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import boto3
from botocore.exceptions import BotoCoreError, ClientError

import steelrail
from steelrail import log
from steelrail.artifacts.cost import CostSummary
from steelrail.clients import process
from steelrail.clients.disk import private_folder
from steelrail.clients.store import Store
from steelrail.cost import edge as cost
from steelrail.errors import SteelrailError
from steelrail.launch import edge as launch
from steelrail.units import show_usd

ROOT = Path(__file__).resolve().parent.parent
NAME = "demo-local"
SERVER_SECONDS = 60
PORTS = ("master.port", "volume.port", "filer.port", "s3.port")
SERVER = """server -ip=127.0.0.1 -ip.bind=127.0.0.1 -master.telemetry=false -master.electionTimeout=1s
 -master.volumeSizeLimitMB=64 -volume.max=50 -volume.preStopSeconds=0 -volume.minFreeSpace=1
 -filer -filer.localSocket=filer.sock -s3 -s3.localSocket=s3.sock -s3.port.iceberg=0 -s3.port.lance=0"""


def derive(steps: int, results: Path, endpoint: str) -> steelrail.Run:
    """Return the demo's run made smaller: one node, two ranks, no Slurm, everything below ``results``."""
    run = steelrail.load_run("config/demo.yaml").model_dump(mode="json")
    run |= {"name": NAME, "results": str(results)}
    run["shards"]["parts"] = 2
    run["shape"] |= {"nodes": 1, "gpus_per_node": 2, "ranks_per_node": 2}
    run["slurm"] |= {"executor": "local", "environment": {"GLOO_SOCKET_IFNAME": "lo"}}
    run["node"]["nvme"] = str(private_folder(results / NAME / "nvme"))
    run["store"] |= {"endpoint": endpoint, "allow_http": False}
    run["train"] |= {"steps": steps, "heldout_every_steps": max(1, steps // 3)}
    run["train"]["optimizer"]["warmup_steps"] = steps // 6
    run["checkpoints"]["every_steps"] = max(1, steps // 3)
    return steelrail.Run.model_validate_json(json.dumps(run))


@contextlib.contextmanager
def s3_server(data: Path, *more: str) -> Iterator[str]:
    """Serve ``data`` by SeaweedFS on loopback, with new keys for it and for this process; yield the endpoint.

    ``more``: options of the server that count before the demo's.
    """
    with tempfile.TemporaryDirectory(prefix="steelrail-") as name, contextlib.ExitStack() as ending:
        private, ports = Path(name), _free_ports(2 * len(PORTS))
        options = [f"-dir={data}", f"-s3.config={_write_keys(private)}"]
        options += [
            f"-{one}={port}" for one, port in zip((*PORTS, *(f"{one}.grpc" for one in PORTS)), ports, strict=True)
        ]
        argv = [str(Path(sys.executable).with_name("weed")), f"-logdir={private}", *SERVER.split(), *options, *more]
        # A session of its own: Ctrl-C must reach the ranks before their store.
        server = process.start(argv, os.environ, private / "weed.log", cwd=private, new_session=True)
        ending.callback(_end, server, grpc_sockets(ports[len(PORTS) :]))
        yield f"http://127.0.0.1:{ports[PORTS.index('s3.port')]}"


def make_bucket(run: steelrail.Run) -> None:
    """Make the run's bucket where it is missing; a server that does not wake up in time is the probe's to explain."""
    s3 = boto3.client("s3", endpoint_url=run.store.endpoint, region_name=run.store.region)
    for _ in range(SERVER_SECONDS):
        with contextlib.suppress(BotoCoreError, ClientError):
            if run.store.bucket in [one["Name"] for one in s3.list_buckets()["Buckets"]]:
                break
            s3.create_bucket(Bucket=run.store.bucket)
        time.sleep(1.0)
    Store.open(run.store).probe()


def chain(run: steelrail.Run) -> CostSummary:
    """Run every stage and return the bill. Ended early, it waits: ranks save while their store is still there."""
    steelrail.prepare(run)
    launch.fabric(run)
    job = steelrail.submit(run)
    try:
        job.result()
    finally:
        job.cancel(check=False)
        job.wait()
    return cost.run_stage(run)


def main() -> int:
    """Run the chain, say where its files lie and what this does not show, and return the exit code."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    results = Path(sys.argv[2] if len(sys.argv) > 2 else ROOT / "results").absolute()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.umask(0o077)
    os.chdir(ROOT)
    log.configure()
    try:
        private_folder(results / NAME)
        with s3_server(private_folder(results / NAME / "store")) as endpoint:
            run = derive(steps, results, endpoint)
            make_bucket(run)
            bill = chain(run)
    except SteelrailError as error:
        print(f"demo: {error}", file=sys.stderr)
        return error.exit_code
    money = f"{bill.status} ({bill.reason})" if bill.total_micro_usd is None else show_usd(bill.total_micro_usd)
    print(f"Trained to step {steps} in {bill.attempts} attempt(s). Cost: {money}.")
    print(f"Report: {results / NAME / 'cost' / 'report.html'}; model and metrics: {results / NAME / 'train'}.")
    print("Not shown: Slurm, several hosts and the links between them, GPUs, requeue, the exact bill.")
    return 0


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def _write_keys(private: Path) -> Path:
    """Make a pair of keys, give it to boto3's chain (which must find no other), and return the server's file of it."""
    access, secret = secrets.token_hex(10), secrets.token_hex(20)
    pair, actions = {"accessKey": access, "secretKey": secret}, ["Admin", "Read", "Write", "List", "Tagging"]
    identities, credentials = private / "identities.json", private / "credentials"
    identities.write_text(
        json.dumps({"identities": [{"name": "steelrail", "credentials": [pair], "actions": actions}]})
    )
    credentials.write_text(f"[default]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ["AWS_SHARED_CREDENTIALS_FILE"] = str(credentials)
    return identities


def _end(server: subprocess.Popen[bytes], sockets: Sequence[Path]) -> None:
    # On TERM it takes 15 s to leave; whatever it has answered for outlives a kill (tests/cluster/test_dev_cluster.py).
    server.kill()
    server.wait()
    for one in sockets:
        one.unlink(missing_ok=True)


def grpc_sockets(ports: Sequence[int]) -> list[Path]:
    """Return the sockets that SeaweedFS makes where no option can put them elsewhere. ``ports``: of gRPC, as PORTS."""
    names = (one.partition(".")[0] for one in PORTS)
    return [Path("/tmp", f"seaweedfs-{name}-grpc-{port}.sock") for name, port in zip(names, ports, strict=True)]


if __name__ == "__main__":
    sys.exit(main())
