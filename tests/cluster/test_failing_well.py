"""Each failure ends by its kind, with one message and nothing half-written, and a repeat works once it is mended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

if TYPE_CHECKING:
    from dev_cluster import Cluster, Project

SOURCE = Path(__file__).resolve().parents[2]
# Where the environment really lies: a clone that the user cannot reach only has a link to it.
PROGRAMS = (SOURCE / ".venv").resolve() / "bin"
STATE = Path("/var/lib/steelrail-dev")
HEAD = "10.77.0.254"
# New each time: what an earlier session left in the store would be taken up.
NAME = f"fail-{uuid.uuid4().hex[:6]}"
STEPS = 10
INTERVAL = 5
MESSAGE = re.compile(r".+ must be .+, is .+ \(.+\): .+", re.DOTALL)
# A later attempt of these is not slowed: what is repeated ends soon.
SLOW = [{"kind": "wait", "seconds": 1.0, "at_step": step, "attempt": 1} for step in range(INTERVAL + 1, 60)]
HOLD = [{"kind": "wait", "seconds": 300.0, "at_step": INTERVAL + 2, "attempt": 1}]
ONCE = {"launch.restarts_in_allocation": 0, "launch.requeues_without_progress": 0, "launch.same_error_limit": 1}
CONDITIONAL_PUTS = "store must be one that refuses a second put with If-None-Match"


def base() -> dict[str, Any]:
    """The smallest run: one node, two ranks, ten steps."""
    return {
        "name": NAME,
        "corpus": {"paths": ["data/tiny.parquet"]},
        "shards": {
            "parts": 1,
            "tokenizer": "config/tokenizers/demo-8192.json",
            "heldout_per_million": 100_000,
            "partition": "cpu",
        },
        "shape": {
            "nodes": 1,
            "gpus_per_node": 16,
            "ranks_per_node": 2,
            "device": "cpu",
            "gpu": "cpu",
            "rack": "any",
            "rails": 1,
            "rail_gbit_per_s": 1,
        },
        "slurm": {
            "partition": "gpu",
            "minutes": 10,
            "fabric_minutes": 5,
            "lead_seconds": 30,
            "cpus_per_rank": 1,
            "environment": {"GLOO_SOCKET_IFNAME": "eth0"},
        },
        "node": {"nvme": "/mnt/fastssd", "min_free_gb": 0.0},
        "store": {
            "endpoint": f"http://{HEAD}:8333",
            "bucket": "steelrail",
            "allow_http": True,
            "retry_seconds": 3,
            "timeout_seconds": 5,
        },
        "train": {
            "model": {
                "dim": 32,
                "num_layers": 1,
                "num_heads": 2,
                "num_kv_heads": 1,
                "ffn_dim": 32,
                "vocab_size": 8192,
            },
            "optimizer": {"learning_rate": 0.003},
            "steps": STEPS,
            "sequence_tokens": 32,
            "global_batch_sequences": 2,
            "precision": "fp32",
            "heldout_sequences": 0,
            "export": False,
        },
        "checkpoints": {"every_steps": INTERVAL},
        "fabric": {"matrix_size": 64, "pair_bytes": 1000, "repeats": 3},
        "launch": {"poll_seconds": 0.5},
    }


def write(project: Project, changes: dict[str, Any] | None = None) -> str:
    """config/fail.yaml: the smallest run with the settings of the given dotted names; its path."""
    run = base()
    for name, value in (changes or {}).items():
        section = run
        *above, last = name.split(".")
        for part in above:
            section = section.setdefault(part, {})
        section[last] = value
    path = project.folder / "config" / f"{NAME}.yaml"
    path.write_text(yaml.safe_dump(run, sort_keys=False))
    path.chmod(0o644)
    return f"config/{NAME}.yaml"


def steelrail(project: Project, *words: str, env: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    program = str(PROGRAMS / "steelrail")
    return project.run("env", *env, program, *words, "--config", f"config/{NAME}.yaml", seconds=300)


def fails(done: subprocess.CompletedProcess[str], code: int, *words: str) -> str:
    """The one message of a command that must have failed with this code and these words; no trace beside it."""
    said = done.stdout + done.stderr
    assert code == done.returncode, said[-3000:]
    messages = [
        line.split(" ERROR steelrail.cli: ")[1] for line in said.splitlines() if " ERROR steelrail.cli: " in line
    ]
    assert 1 == len(messages) and MESSAGE.fullmatch(messages[0]), said[-3000:]
    for word in words:
        assert word in messages[0], messages[0]
    return messages[0]


def works(done: subprocess.CompletedProcess[str]) -> None:
    assert 0 == done.returncode, (done.stdout + done.stderr)[-4000:]


def quiet(done: subprocess.CompletedProcess[str]) -> None:
    assert "Traceback" not in done.stdout + done.stderr, (done.stdout + done.stderr)[-3000:]


def training_jobs(cluster: Cluster) -> list[str]:
    return cluster.user("squeue", "--noheader", f"--name=steelrail-{NAME}-train", "--format=%i").split()


def trained(project: Project, seed: int) -> Path:
    """The run folder of the model of one seed."""
    for frozen in (project.results / NAME / "train").glob("*/run.json"):
        if json.loads(frozen.read_text())["train"]["seed"] == seed:
            return frozen.parent
    return project.results / "not-yet"


def last_step(project: Project, seed: int, attempt: int = 1) -> int:
    path = trained(project, seed) / "events" / f"attempt-{attempt:04d}-rank-00000.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    events = [json.loads(line) for line in lines if line.endswith("}")]
    return max((event["step"] for event in events if event["kind"] == "step"), default=0)


def record(project: Project) -> dict[str, Any]:
    return project.json(f"{NAME}/train/record.json")


def half_written(folder: Path) -> list[str]:
    """What a writer leaves that died or gave up before the end."""
    return [str(path) for path in folder.rglob("*") if path.name.endswith(".tmp") or path.name.startswith(".")]


@pytest.fixture(scope="module")
def tiny(project: Project) -> Project:
    """The project with a small corpus, readable by the user."""
    rows = pq.read_table(SOURCE / "data/sample.parquet", columns=["text"]).slice(0, 200)
    pq.write_table(rows, project.folder / "data/tiny.parquet")
    (project.folder / "data/tiny.parquet").chmod(0o644)
    return project


@pytest.fixture(scope="module")
def sharded(tiny: Project) -> Project:
    """Corpus and data shards of the run are made, so that training can begin at once."""
    make_shards(tiny, {})
    return tiny


def make_shards(project: Project, changes: dict[str, Any]) -> None:
    nvme = project.folder.parent / f"{project.folder.name}-nvme"
    project.run("mkdir", "--parents", str(nvme))
    write(project, {**changes, "node.nvme": str(nvme)})
    for words in (["corpus"], ["shards", "part", "--part", "0"], ["shards", "gather"]):
        works(steelrail(project, *words))
    shutil.rmtree(nvme)


def test_a_corpus_that_cannot_be_used_is_named_and_a_repeat_works_once_it_can(tiny: Project) -> None:
    path, whole = tiny.folder / "data/case.parquet", (tiny.folder / "data/tiny.parquet").read_bytes()
    no_rows = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), no_rows)
    other_column = pa.BufferOutputStream()
    pq.write_table(pa.table({"texts": ["a"]}), other_column)
    cases = (
        (None, "input file must be readable, is not (No such file"),
        (b"no Parquet at all", "corpus file must be Parquet, is not (17 bytes"),
        (b"", "corpus file must be Parquet, is not (0 bytes"),
        (whole[:400_000], "corpus file must be whole, is truncated at 400000 bytes"),
        (whole[:400_000] + whole[-8:], "corpus file must be readable Parquet, is damaged"),
        (no_rows.getvalue().to_pybytes(), "corpus must be at least one row"),
        (other_column.getvalue().to_pybytes(), "set corpus.text_column to 'texts', the nearest one"),
    )
    write(tiny, {"corpus.paths": ["data/case.parquet"]})
    for data, words in cases:
        if data is not None:
            path.write_bytes(data)
            path.chmod(0o644)
        done = steelrail(tiny, "corpus")
        fails(done, 3, words)
        quiet(done)
    path.chmod(0)
    fails(steelrail(tiny, "corpus"), 3, "must be readable, is not (Permission denied)")
    assert not list((tiny.results / NAME).rglob("manifest.json")) and not half_written(tiny.results / NAME)
    path.write_bytes(whole)
    path.chmod(0o644)
    works(steelrail(tiny, "corpus"))
    write(tiny, {"corpus.paths": ["data/nothing-*.parquet"]})
    fails(steelrail(tiny, "corpus"), 3, "corpus must be at least one Parquet file, is empty")


def test_settings_that_a_shell_could_read_otherwise_are_refused_all_at_once(tiny: Project) -> None:
    write(
        tiny,
        {
            "slurm.partition": "gpu; touch /tmp/owned",
            "slurm.account": "$(touch /tmp/owned)",
            "slurm.qos": "a b",
            "slurm.constraint": "a\n#SBATCH --wrap=x",
            "slurm.gres": "gpu`id`",
            "slurm.setup": ["true\ntouch /tmp/owned"],
            "slurm.environment": {"A=$(id)": "x", "NCCL_DEBUG": "a\nb"},
            "slurm.mail_user": "me@x' --uid=0",
            "shards.partition": "cpu --wrap=x",
            "store.bucket": "x$(id)",
            "launch.pol_seconds": 1,
        },
    )
    done = steelrail(tiny, "plan")
    said = done.stderr.split(" ERROR steelrail.cli: ")[1].splitlines()
    assert (2, 12) == (done.returncode, len(said)), said
    assert all(MESSAGE.fullmatch(line) for line in said), said
    assert any("did you mean launch.poll_seconds?" in line for line in said)
    write(tiny, {"slurm.environment": {"HF_TOKEN": "canary-of-a-token"}})
    done = steelrail(tiny, "plan")
    assert 2 == done.returncode and "environment must be without secrets" in done.stderr
    assert "canary-of-a-token" not in done.stdout + done.stderr


def test_snakemake_ends_with_the_same_message_and_exit_code(tiny: Project) -> None:
    write(tiny, {"launch.pol_seconds": 1})
    done = tiny.snakemake(NAME, seconds=120)
    said = done.stdout + done.stderr
    assert 2 == done.returncode and 1 == said.count("did you mean launch.poll_seconds?"), said
    quiet(done)
    done = tiny.snakemake("$(touch owned); touch owned", seconds=120)
    assert 2 == done.returncode and "run file must be a file, is missing" in done.stdout + done.stderr
    assert not (tiny.folder / "owned").exists()
    # One that only a stage finds out: its own words come last.
    (tiny.folder / "data/bad.parquet").write_bytes(b"no Parquet at all")
    (tiny.folder / "data/bad.parquet").chmod(0o644)
    write(tiny, {"corpus.paths": ["data/bad.parquet"]})
    done = tiny.snakemake(NAME, "--until", "corpus", "--forcerun", "corpus", seconds=120)
    assert 3 == done.returncode, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1].startswith("corpus file must be Parquet, is not (17 bytes")
    done = tiny.run("env", "AWS_SECRET_ACCESS_KEY=canary", "snakemake", "--profile", "slurm", "--config", f"run={NAME}")
    assert 2 == done.returncode and "S3 credentials must be in a file" in done.stderr and "canary" not in done.stderr


def test_what_slurm_cannot_give_is_said_before_anything_is_submitted(cluster: Cluster, sharded: Project) -> None:
    write(sharded, {"shape.nodes": 9, "train.global_batch_sequences": 18})
    fails(steelrail(sharded, "train"), 4, "able to give 9 nodes with 16 gpu and 2 CPUs each, is 5 nodes")
    write(sharded, {"slurm.partition": "gpuu"})
    fails(steelrail(sharded, "train"), 4, "partition must be one of this cluster's, is gpuu", "one of gpu,")
    write(sharded, {"slurm.reservation": "nobodys"})
    fails(steelrail(sharded, "train"), 4, "sbatch must be accepted by Slurm, is refused", "reservation")
    write(sharded)
    bare = sharded.folder / "bare"
    bare.mkdir(exist_ok=True)
    fails(steelrail(sharded, "train", env=(f"PATH={bare}",)), 4, "Slurm must be installed here, is missing")
    fails(steelrail(sharded, "fabric", env=(f"PATH={bare}",)), 4, "Slurm must be installed here, is missing")
    assert not training_jobs(cluster)


def test_a_store_that_is_away_or_refuses_is_named_and_nothing_is_submitted(cluster: Cluster, sharded: Project) -> None:
    write(sharded, {"store.bucket": "steelrail-missing"})
    fails(
        steelrail(sharded, "train"),
        5,
        "bucket must be there, is missing (NoSuchBucket, HTTP 404) (probe s3://steelrail-missing/",
    )
    wrong = sharded.folder / "wrong-credentials"
    wrong.write_text("[default]\naws_access_key_id = AKIAWRONG\naws_secret_access_key = canary-wrong\n")
    wrong.chmod(0o644)
    write(sharded)
    message = fails(steelrail(sharded, "train", env=(f"AWS_SHARED_CREDENTIALS_FILE={wrong}",)), 5, "~/.aws/credentials")
    assert "store credentials must be known to the store, is refused" in message and "canary" not in message
    wrong.unlink()
    nowhere = ("AWS_SHARED_CREDENTIALS_FILE=/nowhere", "AWS_EC2_METADATA_DISABLED=true")
    fails(steelrail(sharded, "train", env=nowhere), 5, "store credentials must be found", "is not found")
    write(sharded, {"store.profile": "nobody"})
    fails(steelrail(sharded, "train"), 5, "profile must be in the AWS credentials", "ProfileNotFound", "store.profile")
    write(sharded)
    cluster.control("s3", "stop")
    fails(steelrail(sharded, "train"), 5, "store must be reachable, is not reachable for")
    fails(steelrail(sharded, "shards", "part", "--part", "0"), 5, "store must be reachable, is not reachable for")
    cluster.control("s3", "start")
    works(steelrail(sharded, "shards", "part", "--part", "0"))
    assert not training_jobs(cluster)


class Answering(BaseHTTPRequestHandler):
    """The frame of an S3 server of our own, for what a real one cannot be made to do at will."""

    protocol_version = "HTTP/1.1"

    def log_message(self, form: str, *words: object) -> None:
        pass

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("ETag", '"x"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Expiring(Answering):
    """An S3 server for which every credential ran out a moment ago."""

    def refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer(400, b"<Error><Code>ExpiredToken</Code><Message>canary-of-a-server</Message></Error>")

    do_PUT = do_GET = do_HEAD = do_DELETE = refuse


class Forgetful(Answering):
    """An S3 server that takes every put, whatever its condition."""

    objects: dict[str, bytes]

    def do_PUT(self) -> None:
        self.objects[self._key()] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, b"")

    def do_GET(self) -> None:
        if "list-type" in self.path:
            prefix = parse_qs(urlsplit(self.path).query).get("prefix", [""])[0]
            found = [key for key in self.objects if key.startswith(prefix)]
            rows = "".join(f"<Contents><Key>{key}</Key><Size>64</Size><ETag>x</ETag></Contents>" for key in found)
            text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
            return self.answer(200, text.encode())
        data = self.objects.get(self._key())
        return self.answer(200 if data is not None else 404, data or b"")

    def do_HEAD(self) -> None:
        self.answer(200 if self._key() in ("", *self.objects) else 404, b"")

    def do_DELETE(self) -> None:
        self.objects.pop(self._key(), None)
        self.answer(204, b"")

    def _key(self) -> str:
        return self.path.split("?")[0].removeprefix("/steelrail").lstrip("/")


@contextlib.contextmanager
def serving(handler: type[Answering]) -> Iterator[str]:
    """The endpoint of a server that answers as HANDLER does."""
    server = ThreadingHTTPServer((HEAD, 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{HEAD}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_expired_credentials_are_named_and_nothing_is_submitted(cluster: Cluster, sharded: Project) -> None:
    with serving(Expiring) as endpoint:
        write(sharded, {"store.endpoint": endpoint})
        message = fails(steelrail(sharded, "train"), 5, "credentials must be valid, is expired")
        assert "canary" not in message and not training_jobs(cluster)


def test_a_store_that_ignores_conditional_puts_is_refused(cluster: Cluster, sharded: Project) -> None:
    Forgetful.objects = {}
    with serving(Forgetful) as endpoint:
        write(sharded, {"store.endpoint": endpoint})
        fails(steelrail(sharded, "train"), 5, CONDITIONAL_PUTS, "use a store that keeps it")
    assert {} == Forgetful.objects and not training_jobs(cluster)


def in_host(host: str, *command: str) -> None:
    pid = (STATE / "run" / f"slurmd.{host}.pid").read_text().strip()
    subprocess.run(["nsenter", "--mount", "--target", pid, *command], check=True)


@contextlib.contextmanager
def small_disk(host: str, mib: int) -> Iterator[None]:
    """A disk of so many MiB in the place of the host's NVMe. The data shards take 2 MB, a checkpoint 6 MB."""
    in_host(host, "mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=1777", "small", "/mnt/fastssd")
    try:
        yield
    finally:
        in_host(host, "umount", "--lazy", "/mnt/fastssd")


def test_an_nvme_that_is_missing_or_full_is_named_and_a_repeat_works_once_it_is_not(
    cluster: Cluster, sharded: Project
) -> None:
    here = {**ONCE, "train.seed": 12, "slurm.exclude": ["node2", "node3", "node4", "node5"]}
    write(sharded, {**here, "node.nvme": "/nowhere"})
    fails(steelrail(sharded, "train"), 6, "NVMe folder must be mounted, is missing (/nowhere)", "node1")
    with small_disk("node1", 1):
        write(sharded, {**here, "node.min_free_gb": 0.01})
        fails(steelrail(sharded, "train"), 6, "free space must be at least 10", "is 1.", "node1")
        write(sharded, here)
        fails(steelrail(sharded, "train"), 6, "NVMe's free space must be at least 1.92 MB, is 1.0", "node1")
    with small_disk("node1", 4):
        done = steelrail(sharded, "train")
        fails(done, 6, "last save must be on NVMe and in the store", "No space left on device", "node1")
    works(steelrail(sharded, "train"))
    assert (STEPS, "done") == (record(sharded)["final_step"], record(sharded)["ending"])


def test_a_rank_that_raises_shows_its_trace_and_the_mended_code_resumes_the_same_key(
    cluster: Cluster, sharded: Project
) -> None:
    # The checkpoint before it has six seconds to reach the store.
    wait = {"kind": "wait", "seconds": 6.0, "at_step": INTERVAL + 1}
    drill = {"kind": "raise", "at_step": INTERVAL + 2, "attempt": 0, "rank": 1}
    write(sharded, {**ONCE, "train.seed": 11, "drills": [wait, drill]})
    done = steelrail(sharded, "train")
    fails(
        done, 8, "rank 1 on node", f"at step {INTERVAL + 2}", "DrillError: raised on purpose", "logs/attempt-0001.log"
    )
    assert "Traceback (most recent call last)" in done.stderr and "in perform" in done.stderr
    root = trained(sharded, 11)
    code = sharded.folder / "src/steelrail/train/drills.py"
    broken = code.read_text()
    code.write_text(broken.replace("raise DrillError(", "_ = DrillError("))
    assert broken != code.read_text()
    try:
        works(steelrail(sharded, "train"))
    finally:
        code.write_text(broken)
    jobs = json.loads((root / "jobs.json").read_text())
    assert record(sharded)["key"] == root.name and 2 == len({job["code_digest"] for job in jobs})
    assert [1, INTERVAL + 1] == [one["first_step"] for one in record(sharded)["attempts"]]
    assert STEPS == record(sharded)["final_step"]
    # Without its results folder the run takes up what the store holds, and is done.
    kept = record(sharded)["final_checkpoint"]
    shutil.rmtree(sharded.results / NAME / "train")
    works(steelrail(sharded, "train"))
    assert (STEPS, kept) == (record(sharded)["final_step"], record(sharded)["final_checkpoint"])


def secrets() -> list[str]:
    return [word for word in (STATE / "s3/key").read_text().split() if len(word) > 10][1:]


def holding(folders: list[Path], words: list[str]) -> list[str]:
    """The files below FOLDERS that hold one of WORDS."""
    options = [f"--regexp={word}" for word in words]
    argv = ["grep", "--recursive", "--files-with-matches", "--text", "--fixed-strings", *options, *map(str, folders)]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.splitlines()


def slurm_state() -> list[Path]:
    return [STATE / "state", STATE / "spool", STATE / "nodes", STATE / "log"]


def open_to_others(folder: Path) -> list[str]:
    """What others could reach: a private folder hides what is in it, whatever its own mode."""
    found = []
    for path in folder.iterdir():
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode & 0o077 and not path.is_symlink():
            found.append(f"{path} {mode:04o}")
    return found


def test_a_cancelled_job_stays_cancelled_beside_refused_rivals_and_the_same_command_resumes(
    cluster: Cluster, sharded: Project
) -> None:
    write(sharded, {"train.seed": 13, "drills": HOLD})
    driver = sharded.start("snakemake", "--profile", "slurm", "--config", f"run={NAME}")
    try:
        cluster.wait_until(lambda: last_step(sharded, 13) > INTERVAL or driver.poll() is not None, 150, "steps made")
        said = (sharded.folder / "driver.log").read_text()
        assert driver.poll() is None, said[-4000:]
        job = training_jobs(cluster)
        rival = sharded.snakemake(NAME, seconds=120)
        text = rival.stdout + rival.stderr
        assert 10 == rival.returncode and f"run {NAME} must be driven by one Snakemake, is driven by process" in text
        fails(steelrail(sharded, "train"), 10, f"run {NAME} must be driven by one process, is driven by process")
        script = cluster.user("scontrol", "write", "batch_script", job[0], "-")
        assert f"#SBATCH --job-name=steelrail-{NAME}-train" in script and not any(word in script for word in secrets())
        # The search finds what is there: the job's name stands in what Slurm keeps of it.
        assert holding(slurm_state(), [f"steelrail-{NAME}-train"]) and not holding(slurm_state(), secrets())
        cluster.user("scancel", *job)
        assert 9 == driver.wait(120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
    said = (sharded.folder / "driver.log").read_text()
    assert f"run {NAME} must be trained to its end, is cancelled" in said.splitlines()[-1], said[-3000:]
    cluster.wait_until(lambda: not training_jobs(cluster), 60, "the cancelled job gone")
    time.sleep(3)
    assert (
        1 == len(job) and not training_jobs(cluster) and not (sharded.results / NAME / "train/record.json.tmp").exists()
    )
    works(steelrail(sharded, "train"))
    assert ["cancelled", "done"] == [one["ending"] for one in record(sharded)["attempts"]]
    assert INTERVAL + 1 == record(sharded)["attempts"][1]["first_step"]


def test_a_stopped_run_saves_stays_stopped_and_loses_no_step(cluster: Cluster, sharded: Project) -> None:
    write(sharded, {"train.seed": 14, "train.steps": 60, "drills": SLOW})
    driver = sharded.start("steelrail", "train", "--config", f"config/{NAME}.yaml")
    try:
        cluster.wait_until(
            lambda: last_step(sharded, 14) > INTERVAL + 1 or driver.poll() is not None, 150, "steps made"
        )
        fails(steelrail(sharded, "train"), 10, f"run {NAME} must be driven by one process, is driven by process")
        done = steelrail(sharded, "stop")
        assert 0 == done.returncode and "was asked to save and end" in done.stdout
        assert 9 == driver.wait(120), (sharded.folder / "driver.log").read_text()[-3000:]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
    assert "is stopped on request" in (sharded.folder / "driver.log").read_text().splitlines()[-1]
    cluster.wait_until(lambda: not training_jobs(cluster), 60, "the stopped job gone")
    time.sleep(3)
    assert not training_jobs(cluster)
    works(steelrail(sharded, "train"))
    first, second = record(sharded)["attempts"]
    assert ("stopped", "done", 60) == (first["ending"], second["ending"], record(sharded)["final_step"])
    assert first["last_step"] + 1 == second["first_step"]


def test_a_run_at_its_budget_saves_and_goes_on_only_when_it_is_raised(cluster: Cluster, sharded: Project) -> None:
    # 42 s of sixteen GPUs, the fabric job's included, which takes five to twenty; training alone would take a minute.
    changes = {"train.seed": 15, "train.steps": 60, "drills": SLOW, "cost.budget_usd": "0.75"}
    write(sharded, changes)
    fails(steelrail(sharded, "train"), 9, f"run {NAME} must be trained to its end, is budget", "run train again")
    attempts = len(list((trained(sharded, 15) / "logs").glob("attempt-*.log")))
    fails(steelrail(sharded, "train"), 9, f"budget of run {NAME} must be above the $", "is $0.75", "run train again")
    assert 1 == attempts == len(list((trained(sharded, 15) / "logs").glob("attempt-*.log")))
    write(sharded, {**changes, "cost.budget_usd": "100"})
    works(steelrail(sharded, "train"))
    first, second = record(sharded)["attempts"]
    assert ("budget", "done", 60) == (first["ending"], second["ending"], record(sharded)["final_step"])
    assert (first["last_step"] or 0) + 1 == second["first_step"]


def without_accounting(folder: Path) -> Path:
    """A folder of commands that say what those of a Slurm without accounts say; all else is the real Slurm."""
    folder.mkdir()
    config = r"/usr/bin/scontrol show config | sed 's/^AccountingStorageType .*/AccountingStorageType   = (null)/'"
    (folder / "scontrol").write_text(
        f'#!/bin/sh\nif [ "$1 $2" = "show config" ]; then {config}; else exec /usr/bin/scontrol "$@"; fi\n'
    )
    (folder / "sacct").write_text("#!/bin/sh\necho 'Slurm accounting storage is disabled' >&2\nexit 1\n")
    for name in ("scontrol", "sacct"):
        (folder / name).chmod(0o755)
    folder.chmod(0o755)
    return folder


def test_without_accounts_and_with_odd_values_a_run_trains_and_its_cost_is_unavailable(
    cluster: Cluster, sharded: Project
) -> None:
    odd = 'it\'s a "b" $(touch owned) `touch owned` ; touch owned & \\ % #'
    changes = {
        "results": "results/odd $(touch owned) it's",
        "slurm.environment": {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_ODD": odd},
        "train.seed": 16,
    }
    make_shards(sharded, changes)
    write(sharded, changes)
    path = f"PATH={without_accounting(sharded.folder / 'slurm-without-accounts')}:{PROGRAMS}:/usr/bin:/bin"
    works(steelrail(sharded, "fabric", env=(path,)))
    done = steelrail(sharded, "train", env=(path,))
    works(done)
    assert "the run's cost will be unavailable" in done.stderr
    works(steelrail(sharded, "cost", env=(path,)))
    folder = sharded.folder / str(changes["results"]) / NAME
    summary = json.loads((folder / "cost/summary.json").read_text())
    assert ("unavailable", None) == (summary["status"], summary["total_micro_usd"])
    assert odd == json.loads((folder / "train/record.json").read_text())["placement"]["environment.NCCL_ODD"]
    assert "unavailable" in (folder / "cost/report.html").read_text()
    assert not list(sharded.folder.rglob("owned")) and not list(STATE.glob("spool/*/**/owned"))
    assert not [home for home in (Path("/home/steelrail"), Path("/tmp"), Path("/")) if (home / "owned").exists()]


def test_no_secret_and_no_open_door_is_left_behind(cluster: Cluster, sharded: Project) -> None:
    assert holding([sharded.folder], [f"steelrail-{NAME}-train"])
    places = [sharded.results, sharded.folder / ".snakemake", sharded.folder / "driver.log", *slurm_state()]
    assert [] == holding(places, [*secrets(), "canary-wrong", "canary-of-a-token"])
    assert 0o700 == stat.S_IMODE((sharded.results / NAME).stat().st_mode)
    assert [] == open_to_others(sharded.results / NAME) + open_to_others(sharded.results / NAME / "train")
    on_nodes = list((STATE / "nodes").glob(f"node*/fastssd/steelrail-*/**/{NAME}"))
    assert on_nodes and {0o700} == {stat.S_IMODE(folder.stat().st_mode) for folder in on_nodes}
