"""A run folder as ranks and supervisor leave it, written by hand for tests."""

import hashlib
import json
import time

from steelrail.artifacts.events import EventWriter
from steelrail.artifacts.fabric import FabricReport
from steelrail.artifacts.files import Provenance, results_folder, write_artifact
from steelrail.artifacts.shards import DataShard, ShardsManifest, TokenizerIdentity
from steelrail.artifacts.trainer import RunFolder
from steelrail.config.keys import fabric_key
from steelrail.fabric.receipt import hardware_digest
from steelrail.launch import ledger
from steelrail.launch.endings import Verdict
from steelrail.launch.freeze import freeze, run_folder
from steelrail.launch.inputs import read_inputs
from steelrail.launch.ledger import Entry

PROVENANCE = Provenance(
    stage="shards",
    key="k",
    command=(),
    started=0.0,
    ended=0.0,
    host="h",
    user="u",
    commit=None,
    dirty=False,
    versions={},
    inputs={},
    config_digest="",
)


def shards_manifest(run, data_digest="data"):
    fields = dict.fromkeys(ShardsManifest.model_fields)
    shard = DataShard(
        name="part-00000-00000.train.arrow",
        split="train",
        part=0,
        documents=1,
        tokens=1000,
        size_bytes=4000,
        sha256=hashlib.sha256(b"").hexdigest(),
        object_key="k",
    )
    known = {
        "version": 1,
        "run": run.name,
        "key": "k",
        "tokenizer": TokenizerIdentity(digest="t", format="huggingface", vocab_size=8192, end_of_text_id=0),
        "data_shards": (shard,),
        "rows": 1,
        "documents": 1,
        "text_bytes": 10,
        "train_tokens": 1000,
        "heldout_tokens": 0,
        "dropped": {},
        "data_digest": data_digest,
        "job_ids": (),
        "provenance": PROVENANCE,
    }
    return ShardsManifest.model_construct(**{**fields, **known})


def write_inputs(run, data_digest="data"):
    """Write a shards manifest for the run and return what training starts from."""
    path = results_folder(run) / "shards" / "manifest.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_artifact(path, shards_manifest(run, data_digest))
    return read_inputs(run)


def write_fabric(run, exclude=(), **changed):
    """Write a report of the fabric stage that admits the run, as of now, and return it."""
    fields = {
        "run": run.name, "key": fabric_key(run), "job_id": "9", "backend": "gloo", "nodes": (), "num_leaves": 1,
        "pairs": (), "world": (), "findings": (), "fit": True, "exclude": exclude,
        "hardware_digest": hardware_digest(()), "measured": time.time(), "valid_until": time.time() + 3600.0,
        "provenance": PROVENANCE,
    }  # fmt: skip
    report = FabricReport.model_validate({**fields, **changed})
    write_artifact(results_folder(run) / "fabric" / "report.json", report)
    return report


def frozen_folder(run, inputs):
    folder = run_folder(run, inputs.key)
    freeze(folder, run, "3.60")
    return folder


def attempt(folder: RunFolder, number, ending=None, action=None, *, segment=0, job_id="15", nodes=("node1", "node2")):
    entry = Entry(number, job_id, segment, 1000.0 * number, nodes, number, "code", 0.0)
    ledger.write_start(folder, "node1", entry)
    ledger.write_step_id(folder, "node1", number, f"{job_id}.{number - 1}")
    if ending is not None:
        ledger.write_end(folder, "node1", number, Verdict(ending, "because"), True, action)


def rank_did(folder: RunFolder, number, steps, durable=(), resumed=None, heldout=(), start=1000.0):
    """Write rank 0's events and metrics of an attempt that made ``steps``, one a second."""
    times = iter(range(10_000))
    events = EventWriter(folder.events(number, 0), number, 0, "node1", lambda: start + next(times))
    if resumed is not None:
        events.write("restore", step=resumed, where="store", seconds=1.0)
    for step, loss in heldout:
        events.write("heldout", step=step, loss=loss)
    for step in steps:
        events.write("step", step=step, start=start + step - 1, seconds={}, tokens=2048)
    for step in durable:
        events.write("durable", step=step, where="store", bytes=1, seconds=0.1)
    events.close()
    rows = [
        {
            "step": step,
            "attempt": number,
            "loss": 1.0,
            "tokens": step * 2048,
            "token_digest": step,
            "grad_norm": 1.0,
            "learning_rate": 0.1,
            "step_seconds": 1.0,
            "tokens_per_s": 2048.0,
            "time": start,
            "heldout_loss": None,
        }
        for step in steps
    ]
    folder.metrics(number).parent.mkdir(parents=True, exist_ok=True)
    folder.metrics(number).write_text("".join(json.dumps(row) + "\n" for row in rows))


def saved(folder, number, *seconds):
    """An attempt whose saves reached the store after so many seconds each, and NVMe after one."""
    attempt(folder, number)
    writer = EventWriter(folder.events(number, 0), number, 0, "node1", lambda: 1000.0)
    for step, took in enumerate(seconds):
        writer.write("durable", step=step, where="nvme", bytes=1, seconds=1.0)
        writer.write("durable", step=step, where="store", bytes=1, seconds=took)
    writer.close()


def entry(attempt=1, **changes):
    """A line of the ledger: an attempt on two nodes."""
    known = {
        "attempt": attempt,
        "job_id": "15",
        "segment": 0,
        "segment_started": 100.0,
        "nodes": ("node1", "node2"),
        "epoch": attempt,
        "code_digest": "abc",
        "started": 0.0,
    }
    return Entry(**{**known, **changes})
