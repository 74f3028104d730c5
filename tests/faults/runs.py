"""A training run of two real ranks on this host, started as a user starts it: ``steelrail train --config FILE``."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from servers import BUCKET, PROJECT, Server, s3

from steelrail.artifacts.events import Event, read_events
from steelrail.artifacts.trainer import RunFolder, read_heartbeat
from steelrail.clients import process

NAME = "faults"
STEPS, EVERY = 30, 5
RANKS = 2
PACE_SECONDS = 0.15
# Far beyond what any row takes: two cores may be shared with much else.
WAIT_SECONDS = 900.0
DATA_PREFIX = "data"
CREDENTIALS = "credentials"
PROGRAM = Path(sys.executable).with_name("steelrail")
Curve = dict[int, tuple[float, int]]


@dataclass(frozen=True)
class Done:
    """How a command ended, what it said, and for how long it ran."""

    code: int
    said: str
    seconds: float


def settings(folder: Path, endpoint: str, prefix: str) -> dict[str, Any]:
    """Return a run file: two ranks, thirty small steps, a checkpoint every five, everything below ``folder``."""
    return {
        "name": NAME,
        "results": str(folder / "results"),
        "corpus": {"paths": [str(PROJECT / "data" / "sample.parquet")]},
        "shards": {"parts": 1, "tokenizer": str(PROJECT / "config" / "tokenizers" / "demo-8192.json")},
        "shape": {"nodes": 1, "gpus_per_node": 0, "ranks_per_node": RANKS, "device": "cpu", "gpu": "cpu", "rails": 1},
        "slurm": {"executor": "local", "environment": {"GLOO_SOCKET_IFNAME": "lo"}, "cpus_per_rank": 1},
        "node": {"nvme": str(folder / "nvme"), "min_free_gb": 0.1},
        "store": {
            "endpoint": endpoint, "bucket": BUCKET, "prefix": prefix, "timeout_seconds": 3.0, "retry_seconds": 20.0
        },
        "train": {
            "model": {
                "dim": 32, "num_layers": 2, "num_heads": 2, "num_kv_heads": 2, "ffn_dim": 64, "vocab_size": 8192
            },
            "optimizer": {"learning_rate": 0.003, "warmup_steps": 5},
            "steps": STEPS,
            "sequence_tokens": 64,
            "global_batch_sequences": 4,
            "precision": "fp32",
            "heldout_sequences": 0,
            "deterministic": True,
            "export": False,
        },
        "checkpoints": {"every_steps": EVERY},
        # A busy machine must not be taken for a hung rank: hangs are other rows'.
        "launch": {"poll_seconds": 0.5, "hang_seconds": 300.0},
        "drills": pace(PACE_SECONDS),
    }  # fmt: skip


def pace(seconds: float) -> list[dict[str, Any]]:
    """Return drills that make every step take at least ``seconds``: uploads must keep up with saves."""
    return [{"kind": "wait", "seconds": seconds, "at_step": step, "attempt": 0} for step in range(1, STEPS + 1)]


@dataclass
class Case:
    """One run of one test: its folder, its store (behind the proxy), its keys. Paths, commands and looks at it."""

    folder: Path
    server: Server
    settings: dict[str, Any]
    outputs: list[Path] = field(default_factory=list)
    drivers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    model: str = ""

    @classmethod
    def bare(cls, folder: Path, server: Server, endpoint: str, prefix: str) -> Case:
        """Return a case without data, in a folder of its own."""
        for part in ("results", "nvme", "out"):
            (folder / part).mkdir(mode=0o700, parents=True)
        server.keys.write(folder / CREDENTIALS)
        secrets = [server.keys.secret, server.other_keys.secret]
        return cls(folder, server, settings(folder, endpoint, prefix), secrets=secrets)

    @classmethod
    def new(cls, folder: Path, server: Server, endpoint: str, manifest: Path) -> Case:
        """Return a case whose data shards are made already: their manifest is copied in."""
        case = cls.bare(folder, server, endpoint, f"t/{os.urandom(6).hex()}")
        shards = folder / "results" / NAME / "shards"
        shards.mkdir(mode=0o700, parents=True)
        (shards / "manifest.json").write_bytes(manifest.read_bytes())
        return case

    def again(self, folder: Path, endpoint: str) -> Case:
        """Return a copy of a run whose processes are gone: results and objects as it left them, another prefix.

        Nothing of it is on the new one's NVMe, as on nodes that never saw it.
        """
        copy = Case.bare(folder, self.server, endpoint, f"t/{os.urandom(6).hex()}")
        shutil.copytree(self.folder / "results", folder / "results", dirs_exist_ok=True, symlinks=True)
        client = s3(self.server)
        for name in self.objects():
            client.copy_object(Bucket=BUCKET, Key=copy.key(name), CopySource={"Bucket": BUCKET, "Key": self.key(name)})
        return copy

    def beside(self, name: str) -> Case:
        """Return the same run from another clone: its own results and NVMe, the same store and key."""
        manifest = self.folder / "results" / NAME / "shards" / "manifest.json"
        other = Case.new(self.folder.with_name(name), self.server, self.settings["store"]["endpoint"], manifest)
        other.settings["store"] = dict(self.settings["store"])
        return other

    @property
    def credentials(self) -> Path:
        """The file from which boto3 takes the run's keys."""
        return self.folder / CREDENTIALS

    # What a user does.

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        """Start ``steelrail train`` (or other words) in the background."""
        file = self.write_run()
        output = self.folder / "out" / f"{len(self.outputs):02d}.txt"
        self.outputs.append(output)
        with output.open("wb") as said:
            driver = subprocess.Popen(
                [*self.command(), *(words or ("train",)), "--config", str(file)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env=self.environment(),
            )
        self.drivers.append(driver)
        return driver

    def finish(self, driver: subprocess.Popen[bytes], seconds: float = WAIT_SECONDS) -> Done:
        """Wait for a command's end."""
        began = time.monotonic()
        code = driver.wait(seconds)
        said = self.outputs[self.drivers.index(driver)].read_text(errors="replace")
        return Done(code, said, time.monotonic() - began)

    def train(self, *words: str, seconds: float = WAIT_SECONDS) -> Done:
        """Run ``steelrail train`` to its end."""
        return self.finish(self.begin(*words), seconds)

    def write_run(self) -> Path:
        """Write the run file."""
        file = self.folder / "run.yaml"
        file.write_text(json.dumps(self.settings, indent=1))
        return file

    def command(self) -> list[str]:
        """Return how Steelrail is called."""
        return [str(PROGRAM)]

    def environment(self) -> dict[str, str]:
        """Return this process's environment with the case's credentials alone."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SLURM_"))}
        return {**kept, **self.own_environment()}

    def own_environment(self) -> dict[str, str]:
        """Return where the run finds its credentials."""
        own = {"AWS_SHARED_CREDENTIALS_FILE": str(self.credentials), "AWS_EC2_METADATA_DISABLED": "true"}
        return {**own, "AWS_CONFIG_FILE": str(self.folder / "no-config")}

    # What can be seen of it.

    @property
    def root(self) -> RunFolder:
        """The one model's folder, or that of the ``model`` that is looked at."""
        found = [key for key in self.models() if self.model in ("", key)]
        assert len(found) == 1, found
        return RunFolder(self.folder / "results" / NAME / "train" / found[0])

    def models(self) -> list[str]:
        """Return the keys that were trained, or begun."""
        train = self.folder / "results" / NAME / "train"
        return sorted(path.name for path in train.glob("????????????") if path.is_dir())

    def of(self, model: str) -> Case:
        """Return the same run, to look at one of several models."""
        return replace(self, model=model)

    def attempts(self) -> int:
        """Return how many attempts began."""
        with contextlib.suppress(AssertionError):
            events = read_events(self.root.ledger) if self.root.ledger.exists() else iter(())
            return sum(1 for event in events if event.kind == "attempt_start")
        return 0

    def begun(self, attempt: int) -> float:
        """Return when an attempt began (Unix seconds)."""
        events = read_events(self.root.ledger)
        return next(one.time for one in events if one.kind == "attempt_start" and one.attempt == attempt)

    def endings(self) -> list[str]:
        """Return how attempts ended, oldest first."""
        return [str(one.data["ending"]) for one in read_events(self.root.ledger) if one.kind == "attempt_end"]

    def ending(self, attempt: int) -> Event:
        """Return the supervisor's word on an attempt that ended."""
        events = read_events(self.root.ledger)
        return next(one for one in events if one.kind == "attempt_end" and one.attempt == attempt)

    def jobs(self, attempts: Sequence[int]) -> set[str]:
        """Return the jobs to which attempts belong."""
        events = read_events(self.root.ledger)
        return {one.data["job_id"] for one in events if one.kind == "attempt_start" and one.attempt in attempts}

    def events(self, attempt: int, kind: str, rank: int = 0) -> list[Event]:
        """Return the events of one kind of a rank's attempt, as far as they are written."""
        path = self.root.events(attempt, rank)
        return [event for event in read_events(path) if event.kind == kind] if path.exists() else []

    def notes(self, attempt: int) -> str:
        """Return what rank 0 noted in an attempt."""
        return "\n".join(str(event.data["text"]) for event in self.events(attempt, "note"))

    def durable(self, attempt: int) -> list[int]:
        """Return the steps whose checkpoint became durable in the store in an attempt."""
        return [event.data["step"] for event in self.events(attempt, "durable") if event.data["where"] == "store"]

    def saved(self, attempt: int) -> list[int]:
        """Return the steps saved on NVMe in an attempt."""
        return [event.data["step"] for event in self.events(attempt, "durable") if event.data["where"] == "nvme"]

    def steps(self, attempt: int) -> list[int]:
        """Return the steps of an attempt."""
        return [event.data["step"] for event in self.events(attempt, "step")]

    def resumed(self, attempt: int) -> int | None:
        """Return the step from which an attempt went on; none: from scratch."""
        found = self.events(attempt, "restore")
        return found[-1].data["step"] if found else None

    def curve(self) -> Curve:
        """Return loss and token digest of every step, of the attempt that made it last."""
        rows: Curve = {}
        for path in sorted((self.root.root / "metrics").glob("attempt-*.jsonl")):
            for line in path.read_text().splitlines():
                row = json.loads(line)
                rows[row["step"]] = (row["loss"], row["token_digest"])
        return rows

    def log(self, attempt: int) -> str:
        """Return what the ranks of an attempt said."""
        path = self.root.log(attempt)
        return path.read_text(errors="replace") if path.exists() else ""

    def pid(self, attempt: int, rank: int) -> int:
        """Return the process of a rank of an attempt that runs."""
        beat = read_heartbeat(self.root.heartbeat(rank))
        assert beat is not None
        assert (beat.attempt, process.alive(beat.pid)) == (attempt, True)
        return beat.pid

    def pids(self) -> list[int]:
        """Return the ranks' processes that live."""
        beats = [read_heartbeat(self.root.heartbeat(rank)) for rank in range(RANKS)]
        return [beat.pid for beat in beats if beat is not None and process.alive(beat.pid)]

    def objects(self, below: str = "") -> dict[str, int]:
        """Return the store's objects of this model below ``<prefix>/<run>/<key>/``, by name with their bytes."""
        prefix = f"{self.settings['store']['prefix']}/{NAME}/{self.root.root.name}/"
        pages = s3(self.server).get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix + below)
        return {one["Key"].removeprefix(prefix): one["Size"] for page in pages for one in page.get("Contents", ())}

    def read(self, name: str) -> bytes:
        """Return one object of this model, straight from the server."""
        body: bytes = s3(self.server).get_object(Bucket=BUCKET, Key=self.key(name))["Body"].read()
        return body

    def write(self, name: str, data: bytes | None) -> None:
        """Replace one object of this model at the server, or remove it."""
        if data is None:
            s3(self.server).delete_object(Bucket=BUCKET, Key=self.key(name))
        else:
            s3(self.server).put_object(Bucket=BUCKET, Key=self.key(name), Body=data)

    def key(self, name: str) -> str:
        """Return the full key of an object of this model."""
        return f"{self.settings['store']['prefix']}/{NAME}/{self.root.root.name}/{name}"

    def committed(self) -> list[str]:
        """Return the checkpoint folders of the store that have a manifest, oldest first."""
        return sorted(name.split("/")[1] for name in self.objects("steps/") if name.endswith("/manifest.json"))

    def unfinished(self) -> list[str]:
        """Return the keys of this model's multipart uploads that were begun and not ended."""
        found = s3(self.server).list_multipart_uploads(Bucket=BUCKET, Prefix=self.key("")).get("Uploads", ())
        return [one["Key"] for one in found]

    def nvme_folders(self) -> list[Path]:
        """Return the checkpoint folders on NVMe, oldest first."""
        return sorted((self.folder / "nvme").glob("steelrail-*/*/*/*/checkpoints/*"))

    # Ending and proving.

    def kill(self) -> None:
        """SIGKILL to driver, supervisor and ranks at once: the host lost its power."""
        pids = self.owned()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for driver in self.drivers:
            driver.wait()
        until(lambda: not any(process.alive(pid) for pid in pids), 20.0, "killed processes are gone")

    def owned(self) -> list[int]:
        """Return every living process that works on this run: its credentials stand in its environment."""
        mark, found = f"AWS_SHARED_CREDENTIALS_FILE={self.credentials}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found

    def leaks(self) -> list[str]:
        """Return the files below the case's folder in which a secret stands, but for the credentials themselves."""
        marks = [secret.encode() for secret in self.secrets if secret]
        paths = [path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink()]
        return [f"{path}" for path in paths if path.name != self.credentials.name and _holds(path, marks)]


def _holds(path: Path, marks: Sequence[bytes]) -> bool:
    with contextlib.suppress(FileNotFoundError):
        data = path.read_bytes()
        return any(mark in data for mark in marks)
    return False


def until(claim: Callable[[], Any], seconds: float, what: str) -> float:
    """Return the seconds after which ``claim`` held; fails the test when it does not in time."""
    began = time.monotonic()
    while not claim():
        assert time.monotonic() - began < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.1)
    return time.monotonic() - began
