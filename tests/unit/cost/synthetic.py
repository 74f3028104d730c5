"""A run folder as a real run leaves it: events, metrics, record, manifests and Slurm's rows, with the truth beside it.

One training job of four nodes of 16 GPUs (two ranks each) and a spare lives through everything: a rank killed inside
the allocation, a node lost (Slurm's row ends RESIZING), preemption, a requeue by hand, the end. The truth is summed as
the events are written, by a clock of its own; the code under test never sees it.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from steelrail.artifacts.corpus import CorpusManifest
from steelrail.artifacts.fabric import DeviceFact, FabricReport, Measurement, NodeFact, PairMeasurement
from steelrail.artifacts.files import Provenance, write_artifact
from steelrail.artifacts.requests import NotedRequests, Requests, note_requests
from steelrail.artifacts.shards import DataShard, ShardsManifest, TokenizerIdentity
from steelrail.artifacts.train import Attempt, Ending, TrainRecord
from steelrail.artifacts.trainer import EXIT_DONE, EXIT_SAVED, RunFolder
from steelrail.config.load import parse_run
from steelrail.config.schema import Run
from steelrail.formats.sacct import SACCT_FIELDS, SacctRow, parse

T0 = 1_795_600_000  # 2026-11-25
KEY = "0123456789ab"
NODES = ("node1", "node2", "node3", "node4")
SPARE = "node5"
GPUS_PER_NODE, RANKS_PER_NODE = 16, 2
GPUS_PER_RANK = GPUS_PER_NODE // RANKS_PER_NODE
SAVE_EVERY = 25
BATCH_TOKENS = 2048
CHECKPOINT_BYTES = 4_500_000
SAVE_REQUESTS = Requests(put=4, get=3, list=1, delete=2)  # of each rank at each save
PART_REQUESTS = Requests(put=3, get=70)  # of each shard job
HOME = Path(__file__).parents[3]


def make_run(results: Path, **cost: object) -> Run:
    """Return a run file's run whose results lie under ``results``."""
    settings = {
        "name": "synthetic",
        "results": str(results),
        "corpus": {"paths": ["data/sample.parquet"]},
        "shards": {"tokenizer": "config/tokenizers/demo-8192.json"},
        "shape": {"nodes": 4, "gpus_per_node": 16, "ranks_per_node": 2, "device": "cpu", "gpu": "h100-sxm"},
        "store": {"bucket": "steelrail"},
        "train": {
            "model": {
                "dim": 128,
                "num_layers": 4,
                "num_heads": 4,
                "num_kv_heads": 2,
                "ffn_dim": 384,
                "vocab_size": 8192,
            },
            "optimizer": {"learning_rate": 0.003},
            "steps": 200,
            "sequence_tokens": 256,
            "global_batch_sequences": 8,
            "precision": "fp32",
        },
        "checkpoints": {"every_steps": SAVE_EVERY},
        "cost": {"price_book": str(HOME / "config" / "prices"), **cost},
    }
    return parse_run(json.dumps(settings), "synthetic")


@dataclass(frozen=True)
class Act:
    """One attempt of the story: where it ran, what it did, how it ended."""

    number: int
    nodes: tuple[str, ...]
    first_step: int  # the one after the checkpoint it resumed from
    last_step: int
    ending: Ending
    reason: str
    hang_seconds: float  # from the last word of the ranks to the attempt's end
    exit_code: int | None  # what the ranks said at their end; none: they were killed


STORY = (
    Act(1, NODES, 1, 60, Ending.JOB_ERROR, "rank 3 ended by signal 9", 1.0, None),
    Act(2, NODES, 51, 90, Ending.NODE_FAILURE, "node3 does not answer", 28.0, None),
    Act(3, ("node1", "node2", "node4", SPARE), 76, 130, Ending.PREEMPTION, "preempted by job 140", 2.0, None),
    Act(4, NODES, 126, 160, Ending.REQUEUED, "requeued by hand; saved within the grace", 1.5, EXIT_SAVED),
    Act(5, NODES, 161, 200, Ending.DONE, "all steps made", 1.5, EXIT_DONE),
)


@dataclass
class Truth:
    """GPU-seconds by category, summed while the events are written."""

    gpu_seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, category: str, seconds: float, gpus: float) -> None:
        self.gpu_seconds[category] += seconds * gpus


@dataclass
class FakeSlurm:
    """Stands for ``clients.slurm.Slurm``: rows by job id; the first ``late`` calls miss the last row and its step."""

    text: str
    late: int = 0
    accounting: bool = True
    calls: int = 0

    def accounts(self, job_ids: Sequence[str]) -> tuple[SacctRow, ...]:
        self.calls += 1
        rows = [row for row in parse(self.text) if row.job_id in job_ids]
        return tuple(rows if self.calls > self.late else rows[:-2])

    def has_accounting(self) -> bool:
        return self.accounting


@dataclass
class Synthetic:
    """What was built."""

    run: Run
    slurm: FakeSlurm
    truth: dict[str, float]
    record: TrainRecord


def build(results: Path, seed: int = 1, waits: dict[str, float] | None = None, **cost: object) -> Synthetic:
    """Write a run folder. ``waits``: seconds by category, put into attempt 2 (4 for idle) of every rank."""
    run = make_run(results, **cost)
    story = _Story(run, random.Random(seed), waits or {})
    return story.tell()


class _Story:
    def __init__(self, run: Run, chance: random.Random, waits: dict[str, float]) -> None:
        self.run, self.chance, self.waits = run, chance, waits
        self.truth = Truth()
        self.folder = Path(run.results) / run.name
        self.files = RunFolder(self.folder / "train" / KEY)
        self.rows: list[str] = []
        self.metrics: list[dict[str, object]] = []
        self.attempts: list[Attempt] = []
        self.now = float(T0)
        self.made = 0
        self.resized: int | None = None

    def tell(self) -> Synthetic:
        self._shards()
        self._fabric()
        self.now = float(round(self.now) + 30)
        self._segment("RESIZING", (*NODES, SPARE), STORY[:2], at_once=True)
        self._segment("PREEMPTED", STORY[2].nodes, STORY[2:3], begun=True)
        self.now += 25
        self._segment("REQUEUED", NODES, STORY[3:4])
        self.now += 13
        self._segment("COMPLETED", NODES, STORY[4:])
        return self._write()

    def wait(self, category: str, attempt: int) -> float:
        return self.waits.get(category, 0.0) if attempt == (4 if category == "idle" else 2) else 0.0

    def _shards(self) -> None:
        for part in range(4):
            seconds = 40 + self.chance.randrange(20) + (self.waits.get("preprocessing", 0) if part == 0 else 0)
            start = int(self.now) + 3 * part
            self._row(
                str(96 + part), "COMPLETED", start, int(start + seconds), ("cpu1",), "billing=1,cpu=1,mem=1500M,node=1"
            )
        self.now += 100 + self.waits.get("preprocessing", 0)

    def _fabric(self) -> None:
        start = int(self.now)
        end = int(start + 45 + self.waits.get("fabric_check", 0) / 2)
        self._row("100", "COMPLETED", start, end, NODES, "billing=4,cpu=4,gres/gpu=64,node=4")
        self.truth.add("fabric_check", end - start, 64)
        self.now = float(end)

    def _segment(
        self, state: str, nodes: tuple[str, ...], acts: Sequence[Act], at_once: bool = False, begun: bool = False
    ) -> None:
        start = int(self.now)
        self.now = float(start)
        for act in acts:
            gap = 0.3 if begun or act is not acts[0] else 2.0 + self.chance.random()
            self._everywhere("startup", gap, nodes, acts)
            self._attempt(act, nodes)
        end = int(self.now) + (1 if at_once else 3)
        self.truth.add("idle", end - self.now, GPUS_PER_NODE * len(nodes))
        self.now = float(end)
        gpus = len(nodes) * GPUS_PER_NODE
        self._row(
            "101", state, start, end, nodes, f"billing={len(nodes)},cpu={len(nodes)},gres/gpu={gpus},node={len(nodes)}"
        )

    def _everywhere(self, category: str, seconds: float, nodes: tuple[str, ...], acts: Sequence[Act]) -> None:
        for host in nodes:
            used = any(host in act.nodes for act in acts)
            self.truth.add(category if used else "idle", seconds, GPUS_PER_NODE)
        self.now += seconds

    def _attempt(self, act: Act, nodes: tuple[str, ...]) -> None:
        started, steps = self.now, self._plan_steps(act)
        ends = [self._rank(act, rank, started, steps) for rank in range(len(act.nodes) * RANKS_PER_NODE)]
        hang = act.hang_seconds + self.wait("lost", act.number)
        if act.exit_code is not None:
            hang += self.wait("idle", act.number)
        ended = max(ends) + hang
        for end in ends:
            self.truth.add("lost" if act.exit_code is None else "idle", ended - end, GPUS_PER_RANK)
        unused = len(set(nodes) - set(act.nodes))
        self.truth.add("idle", ended - started, GPUS_PER_NODE * unused)
        self.now = ended
        self.made = max(self.made, act.last_step)
        self._note(act, started, ended, steps)

    def _plan_steps(self, act: Act) -> list[dict[str, float]]:
        """Steps are one for all ranks: they begin and end together, as collectives make them."""
        return [
            {"step": number, "seconds": 1.4 + 0.3 * self.chance.random(), "heldout": 0.8 if number % 50 == 0 else 0.0}
            for number in range(act.first_step, act.last_step + 1)
        ]

    def _rank(self, act: Act, rank: int, started: float, steps: list[dict[str, float]]) -> float:
        """Write one rank's events; return the time of its last word."""
        host = act.nodes[rank // RANKS_PER_NODE]
        writer = _Rank(self, act, rank, host, started)
        writer.lead_in(sum(STARTS.values()) + 4.0)
        for step in steps:
            writer.step(step)
        return writer.close()

    def _note(self, act: Act, started: float, ended: float, steps: list[dict[str, float]]) -> None:
        self.attempts.append(
            Attempt(
                attempt=act.number,
                job_id="101",
                step_id=f"101.{act.number - 1}",
                segment=0,
                nodes=act.nodes,
                epoch=act.number,
                started=started,
                ended=ended,
                ending=act.ending,
                exit_code=act.exit_code,
                reason=act.reason,
                resumed_from=act.first_step - 1 or None,
                first_step=act.first_step,
                last_step=act.last_step,
                code_digest="c" * 64,
            )
        )
        for step in steps:
            number = int(step["step"])
            loss = 5.2 + 3.8 * 0.985**number + 0.1 * random.Random(number).random()
            self.metrics.append(
                {
                    "step": number,
                    "attempt": act.number,
                    "loss": loss,
                    "tokens": number * BATCH_TOKENS,
                    "token_digest": number * 7,
                    "grad_norm": 1.0,
                    "learning_rate": 0.003,
                    "step_seconds": step["seconds"],
                    "tokens_per_s": BATCH_TOKENS / step["seconds"],
                    "time": started,
                    "heldout_loss": loss + 0.1 if step["heldout"] else None,
                }
            )

    def _row(self, job: str, state: str, start: int, end: int, nodes: tuple[str, ...], tres: str) -> None:
        fields = {
            "JobIDRaw": job,
            "State": state,
            "ExitCode": "0:0",
            "DerivedExitCode": "0:0",
            # As Slurm 22.05 writes it: after a resize the row is submitted then, and started when the job first was.
            "Submit": str(start - 2 if self.resized is None else start),
            "Start": str(start if self.resized is None else self.resized),
            "End": str(end),
            "ElapsedRaw": str(end - start),
            "NNodes": str(len(nodes)),
            "NodeList": ",".join(nodes),
            "AllocTRES": tres,
            "Partition": "gpu" if "gpu=" in tres else "cpu",
            "User": "steelrail",
            "Reason": "None",
            "JobName": "steelrail",
            "Comment": "run=synthetic|stage=train",
        }
        self.resized = start if state == "RESIZING" else None
        self.rows.append("|".join(fields[name] for name in SACCT_FIELDS))
        step = {**fields, "JobIDRaw": f"{job}.batch", "NodeList": nodes[0], "AllocTRES": "cpu=1,node=1"}
        self.rows.append("|".join(step[name] for name in SACCT_FIELDS))

    def _write(self) -> Synthetic:
        hosts = [*NODES]
        record = _record(self)
        write_artifact(self.folder / "train" / "record.json", record)
        write_artifact(self.folder / "shards" / "manifest.json", _shards_manifest())
        write_artifact(self.folder / "fabric" / "report.json", _fabric_report(hosts))
        write_artifact(self.folder / "corpus" / "manifest.json", _corpus_manifest())
        for _ in range(4):
            note_requests(self.folder, NotedRequests(stage="shards", key=KEY, requests=PART_REQUESTS))
        pq.write_table(pa.Table.from_pylist(self.metrics), self.folder / "train" / "metrics.parquet")
        text = "|".join(SACCT_FIELDS) + "\n" + "\n".join(self.rows) + "\n"
        return Synthetic(self.run, FakeSlurm(text), dict(self.truth.gpu_seconds), record)


STARTS = {"staging": 6.0, "fabric_check": 3.0, "restore": 2.0}


class _Rank:
    """Writes one rank's events and sums the truth, by a clock that only these writes move."""

    def __init__(self, story: _Story, act: Act, rank: int, host: str, started: float) -> None:
        self.story, self.act, self.host, self.at = story, act, host, started
        path = story.files.events(act.number, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("w", encoding="utf-8")
        self.rank, self.started = rank, started

    def event(self, kind: str, **data: object) -> None:
        head = {"time": self.at, "kind": kind, "attempt": self.act.number, "rank": self.rank, "host": self.host}
        self.file.write(json.dumps({**head, **data}) + "\n")

    def spend(self, category: str, seconds: float) -> None:
        self.story.truth.add(category, seconds, GPUS_PER_RANK)
        self.at += seconds

    def lead_in(self, until: float) -> None:
        """From the process's start to the loop: parts differ by rank, the loop begins together."""
        chance, story = self.story.chance, self.story
        self.spend("startup", 1.0 + chance.random() + story.wait("startup", self.act.number))
        for category, most in STARTS.items():
            self.event("enter", category=category)
            self.spend(category, most * (0.6 + 0.3 * chance.random()) + story.wait(category, self.act.number))
        self.event("enter", category="startup")
        waited = sum(story.wait(name, self.act.number) for name in ("startup", *STARTS))
        self.spend("startup", self.started + until + waited - self.at)
        if self.act.first_step > 1:
            self.event("restore", step=self.act.first_step - 1, where="nvme", seconds=1.0)
        self.event("enter", category="productive")

    def step(self, plan: dict[str, float]) -> None:
        number, chance = int(plan["step"]), self.story.chance
        trained = "replayed" if number <= self.story.made else "productive"
        extra = dict.fromkeys(
            ("communication", "data_wait", "productive", "replayed", "checkpoint", "unattributed"), 0.0
        )
        if number in (self.act.first_step + 2, self.act.last_step - 2):
            place = "replayed" if number == self.act.first_step + 2 else "productive"
            extra |= {place: self.story.wait(place, self.act.number)}
        if number == self.act.first_step + 4:
            extra |= {
                name: self.story.wait(name, self.act.number)
                for name in ("communication", "data_wait", "checkpoint", "unattributed")
            }
        start = self.at
        parts = {
            "communication": 0.2 * chance.random() + extra["communication"],
            "data_wait": 0.05 * chance.random() + extra["data_wait"],
        }
        for name, seconds in parts.items():
            self.spend(name, seconds)
        rest = plan["seconds"] - sum(parts.values()) + extra["communication"] + extra["data_wait"]
        self.spend(trained, rest + extra[trained])
        self.event("step", step=number, start=start, seconds=parts, tokens=BATCH_TOKENS)
        if plan["heldout"]:
            self.spend(trained, plan["heldout"])
            self.event("heldout", step=number, loss=5.0)
        if extra["unattributed"]:
            self.event("enter", category="unattributed")
            self.spend("unattributed", extra["unattributed"])
            self.event("enter", category="productive")
        if number % SAVE_EVERY == 0 or extra["checkpoint"]:
            self.save(number, extra["checkpoint"])

    def save(self, number: int, wait: float) -> None:
        self.event("enter", category="checkpoint")
        self.spend("checkpoint", 0.5 + wait)
        self.event("save", step=number, bytes=CHECKPOINT_BYTES, stall_seconds=0.5)
        self.event("enter", category="productive")
        # Upload goes on behind the steps; its words come at once here, which move no time.
        self.event("requests", **SAVE_REQUESTS.model_dump())
        self.event("durable", step=number, where="store", bytes=CHECKPOINT_BYTES, seconds=0.4)

    def close(self) -> float:
        if self.act.exit_code is not None:
            self.event("requests", put=0, get=0, list=0, delete=0)
            self.event("end", exit_code=self.act.exit_code, reason="")
        else:
            self.file.write('{"time": 17')  # torn: the rank was killed while it wrote
        self.file.close()
        return self.at


def provenance(stage: str) -> Provenance:
    """Return a provenance as a stage writes it."""
    return Provenance(
        stage=stage,
        key=KEY,
        command=("steelrail", stage),
        started=float(T0),
        ended=float(T0 + 10),
        host="head",
        user="steelrail",
        commit=None,
        dirty=False,
        versions={"python": "3.11"},
        inputs={},
        config_digest="d" * 64,
    )


def _record(story: _Story) -> TrainRecord:
    return TrainRecord(
        run=story.run.name,
        key=KEY,
        ending=Ending.DONE,
        job_ids=("101",),
        attempts=tuple(story.attempts),
        final_step=200,
        final_checkpoint=f"s3://steelrail/steelrail/synthetic/{KEY}/steps/0000000200-00000005",
        export=None,
        tokens=200 * BATCH_TOKENS,
        heldout_first=9.01,
        heldout_last=5.41,
        fabric_digest=None,
        placement={},
        provenance=provenance("train"),
    )


def _shards_manifest() -> ShardsManifest:
    shard = DataShard(
        name="part-00000-00000.train.arrow",
        split="train",
        part=0,
        documents=900,
        tokens=1_400_000,
        size_bytes=5_600_000,
        sha256="a" * 64,
        object_key="steelrail/synthetic/shards/x",
    )
    return ShardsManifest(
        run="synthetic",
        key=KEY,
        tokenizer=TokenizerIdentity(digest="b" * 64, format="huggingface", vocab_size=8192, end_of_text_id=0),
        data_shards=(shard,),
        rows=1000,
        documents=900,
        text_bytes=6_000_000,
        train_tokens=1_400_000,
        heldout_tokens=20_000,
        dropped={},
        data_digest="e" * 64,
        job_ids=("96", "97", "98", "99"),
        provenance=provenance("shards"),
    )


def _corpus_manifest() -> CorpusManifest:
    return CorpusManifest(
        run="synthetic",
        key=KEY,
        text_column="text",
        objects=(),
        num_rows=1000,
        size_bytes=6_000_000,
        content_digest="f" * 64,
        provenance=provenance("corpus"),
    )


def _fabric_report(hosts: list[str]) -> FabricReport:
    chance = random.Random(3)
    device = DeviceFact(index=0, name="cpu", uuid="", memory_bytes=1, matrix_seconds_p50=0.01, matrix_digest="0")
    nodes = tuple(
        NodeFact(host=host, leaf="leaf1", ranks=(2 * n, 2 * n + 1), devices=(device,), nics=("eth0",), versions={})
        for n, host in enumerate(hosts)
    )
    pairs = tuple(
        PairMeasurement(
            first=a,
            second=b,
            size_bytes=1_000_000,
            gb_per_s=0.11 + 0.03 * chance.random(),
            seconds_p50=0.008,
            seconds_p99=0.011,
        )
        for i, a in enumerate(hosts)
        for b in hosts[i + 1 :]
    )
    world = tuple(
        Measurement(
            collective=name,
            size_bytes=size,
            dtype="float32",
            ranks=tuple(range(8)),
            algorithm="ring",
            library="gloo",
            repeats=20,
            seconds_p50=seconds,
            seconds_p95=seconds * 1.3,
            seconds_p99=seconds * 1.6,
            busbw_gb_per_s=size / seconds / 1e9,
        )
        for name, size, seconds in (
            ("all-gather", 850_000, 0.0121),
            ("reduce-scatter", 850_000, 0.0139),
            ("all-reduce", 4_200_000, 0.049),
        )
    )
    return FabricReport(
        run="synthetic",
        key=KEY,
        job_id="100",
        backend="gloo",
        nodes=nodes,
        num_leaves=1,
        pairs=pairs,
        world=world,
        findings=(),
        fit=True,
        exclude=(),
        hardware_digest="9" * 64,
        measured=float(T0 + 130),
        valid_until=float(T0 + 700_000),
        provenance=provenance("fabric"),
    )


def without_events(built: Synthetic, attempt: int) -> None:
    """Remove every word of an attempt's ranks, as when the shared file system lost them."""
    folder = RunFolder(Path(built.run.results) / built.run.name / "train" / KEY)
    for rank in range(len(NODES) * RANKS_PER_NODE):
        folder.events(attempt, rank).unlink()


def with_attempt(built: Synthetic, number: int, **changes: object) -> Synthetic:
    """Return the run with one attempt of its record changed (and written)."""
    attempts = tuple(one.model_copy(update=changes) if one.attempt == number else one for one in built.record.attempts)
    record = built.record.model_copy(update={"attempts": attempts})
    write_artifact(Path(built.run.results) / built.run.name / "train" / "record.json", record)
    return replace(built, record=record)


def attempt(number: int, started: float, ended: float | None, **changes: object) -> Attempt:
    plain = STORY[0]
    fields = {
        "attempt": number,
        "job_id": "7",
        "step_id": f"7.{number}",
        "segment": 0,
        "nodes": plain.nodes,
        "epoch": number,
        "started": started,
        "ended": ended,
        "ending": Ending.JOB_ERROR,
        "exit_code": None,
        "reason": "",
        "resumed_from": None,
        "first_step": None,
        "last_step": None,
        "code_digest": "",
    }
    return Attempt(**{**fields, **changes})
