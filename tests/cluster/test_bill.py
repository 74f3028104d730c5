"""A known wait put into each category in turn is found there, and nowhere else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from steelrail.artifacts.cost import BilledSegment, CostSummary
from steelrail.artifacts.events import Event, read_events
from steelrail.artifacts.files import read_artifact
from steelrail.artifacts.train import TrainRecord
from steelrail.artifacts.trainer import RunFolder
from steelrail.cost.pieces import cut_training
from steelrail.cost.reader import Reader
from steelrail.cost.segments import Segment
from steelrail.cost.timeline import Span, clip

if TYPE_CHECKING:
    from dev_cluster import Cluster, Project

WAIT = float(os.environ.get("STEELRAIL_WAIT_SECONDS", "6"))
GPUS = 16
ONE_RANK = (
    ("nodes: 4, gpus_per_node: 16, ranks_per_node: 2", "nodes: 1, gpus_per_node: 16, ranks_per_node: 1"),
    ("steps: 200", "steps: 16"),
    ("every_steps: 25", "every_steps: 5"),
    ("global_batch_sequences: 8", "global_batch_sequences: 2"),
    ("heldout_every_steps: 50", "heldout_every_steps: 16"),
)
# Nothing is compared with another run: the rank's own word on each wait is held against what was billed.
NOISE_SECONDS = 0.2


def drill(where: str, at_step: int = 0, attempt: int = 1) -> dict[str, Any]:
    return {"kind": "wait", "where": where, "seconds": WAIT, "at_step": at_step, "attempt": attempt}


# Step 8 fails once after the checkpoint of step 5: attempt 2 makes step 7 again.
FAULT = {"kind": "raise", "where": "productive", "at_step": 8, "attempt": 1}
# The category that each wait must be found in. A step tells how long its parts took, not when: one wait a step.
WAITS = {
    "startup": drill("startup"),
    "fabric_check": drill("fabric_check"),
    "staging": drill("staging"),
    "restore": drill("restore"),
    "idle": drill("idle"),
    "lost": drill("lost"),
    "data_wait": drill("data_wait", 2),
    "communication": drill("communication", 3),
    "productive": drill("productive", 4),
    "checkpoint": drill("checkpoint", 5),
    "replayed": drill("productive", 7, attempt=2),
}


def stretch(wait: Event, told: Iterable[Event]) -> tuple[float, float]:
    """Where a wait must be found: from its start to its end, or anywhere in the one step that holds it."""
    start, end = wait.data["start"], wait.data["start"] + wait.data["seconds"]
    steps = ((event.data["start"], event.time) for event in told if event.kind == "step")
    return next(((begin, over) for begin, over in steps if begin <= start and end <= over), (start, end))


def cut_again(record: TrainRecord, paid: Iterable[BilledSegment], folder: RunFolder) -> list[Span]:
    """The spans that the bill of the training job, of one rank on one node, was cut into."""
    fields = ("stage", "job_id", "segment", "state", "nodes", "start", "end", "gpus", "cpus")
    train = [Segment(**{name: getattr(one, name) for name in fields}) for one in paid]
    cuts = cut_training(train, record.attempts, Reader(folder).reports, band_seconds=0.0)
    return [band.span for cut in cuts for band in cut.bands]


def seconds_in(category: str, spans: Iterable[Span]) -> float:
    return sum(span.seconds for span in spans if span.category == category)


def finished(project: Project, name: str) -> Path:
    """The results of a run that was disturbed once and waited in every category."""
    path = project.write_run(name, *ONE_RANK)
    path.write_text(path.read_text() + f"drills: {json.dumps([FAULT, *WAITS.values()])}\n")
    done = project.snakemake(name)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    return project.results / name


@pytest.mark.timeout(1500)
def test_a_known_wait_in_each_category_is_found_there_and_nowhere_else(cluster: Cluster, project: Project) -> None:
    results = finished(project, "waited")
    summary = read_artifact(results / "cost/summary.json", CostSummary)
    record = read_artifact(results / "train/record.json", TrainRecord)
    assert 2 == summary.attempts
    assert summary.total_micro_usd == sum(one.micro_usd for one in summary.categories.values())

    folder = RunFolder(results / "train" / record.key)
    told = [event for attempt in (1, 2) for event in read_events(folder.events(attempt, 0))]
    waits = [event for event in told if event.kind == "drill"]
    asked = [(one["where"], one["attempt"]) for one in WAITS.values()]
    assert asked == [(one.data["where"], one.attempt) for one in waits]
    assert all(one.data["seconds"] >= WAIT - NOISE_SECONDS for one in waits)

    paid = [one for one in summary.segments if one.stage == "train"]
    spans = cut_again(record, paid, folder)
    places = {name: stretch(wait, told) for name, wait in zip(WAITS, waits, strict=True)}
    found = {name: seconds_in(name, clip(spans, *place)) for name, place in places.items()}
    missing = {name: wait.data["seconds"] - found[name] for name, wait in zip(WAITS, waits, strict=True)}
    assert {} == {name: seconds for name, seconds in missing.items() if seconds > NOISE_SECONDS}

    parts = [(name, part.gpu_seconds / GPUS) for one in paid for name, part in one.categories.items()]
    billed = {name: sum(seconds for own, seconds in parts if own == name) for name in WAITS}
    assert {name: seconds_in(name, spans) for name in WAITS} == pytest.approx(billed, abs=0.01)
    assert all(seconds >= WAIT - NOISE_SECONDS for seconds in billed.values()), billed
