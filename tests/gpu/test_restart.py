"""The whole road over NCCL, by the local executor: a rank killed, hung or stopped, and the run goes on bit-equal."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from demo_local import derive, make_bucket, s3_server  # noqa: E402

import steelrail  # noqa: E402
from steelrail.artifacts.files import results_folder  # noqa: E402
from steelrail.artifacts.trainer import Heartbeat, RunFolder, read_heartbeat  # noqa: E402
from steelrail.launch import edge as launch  # noqa: E402
from steelrail.train.metrics import read_rows  # noqa: E402

GPUS = torch.cuda.device_count()
pytestmark = [
    pytest.mark.skipif(GPUS == 0, reason="no CUDA device here"),
    pytest.mark.skipif(not Path(sys.executable).with_name("weed").exists(), reason="no SeaweedFS beside this Python"),
]
STEPS, INTERVAL, AT = 60, 10, 35
HANG_SECONDS = 10.0
CULPRIT = GPUS - 1


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., steelrail.Run]]:
    """Makes the demo's run for all GPUs here: bf16, deterministic, an S3 server of its own."""
    results = tmp_path_factory.mktemp("restart")
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    with s3_server(results) as endpoint:

        def run_of(name: str, *drills: dict[str, Any]) -> steelrail.Run:
            fields = derive(STEPS, results / "results", endpoint).model_dump(mode="json")
            fields |= {
                "name": name,
                "drills": list(drills),
                "launch": fields["launch"] | {"hang_seconds": HANG_SECONDS},
            }
            fields["shape"] |= {"gpus_per_node": GPUS, "ranks_per_node": GPUS, "device": "cuda", "gpu": "h200-sxm"}
            fields["train"] |= {"precision": "bf16", "global_batch_sequences": 8}
            fields["checkpoints"]["every_steps"] = INTERVAL
            return steelrail.Run.model_validate_json(json.dumps(fields))

        make_bucket(run_of("first"))
        yield run_of


def train(run: steelrail.Run, disturb: Callable[[Heartbeat], None] | None = None) -> dict[str, Any]:
    """Run the chain to the end of training, disturbed once the culprit stands in its drill; return the record."""
    steelrail.prepare(run)
    launch.fabric(run)
    job = steelrail.submit(run)
    disturbed = time.time()
    try:
        if disturb is not None:
            disturb(await_drill(run))
            disturbed = time.time()
        job.result()
    finally:
        job.cancel(check=False)
        job.wait()
    record: dict[str, Any] = json.loads((results_folder(run) / "train" / "record.json").read_text())
    return record | {"disturbed": disturbed}


def await_drill(run: steelrail.Run) -> Heartbeat:
    """Return the culprit's heartbeat once it has made the steps before the drill."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        for folder in folders(run):
            beat = read_heartbeat(folder.heartbeat(CULPRIT))
            if beat is not None and beat.step is not None and beat.step >= AT - 1:
                return beat
        time.sleep(0.05)
    pytest.fail(f"step {AT - 1} must come within 120 s")


def folders(run: steelrail.Run) -> list[RunFolder]:
    return [RunFolder(path.parent) for path in (results_folder(run) / "train").glob("*/ledger.jsonl")]


def newest(run: steelrail.Run) -> dict[int, tuple[float, int]]:
    """The last execution of every step: loss and token digest."""
    (folder,) = folders(run)
    paths = sorted(folder.metrics(1).parent.glob("attempt-*.jsonl"))
    return {row.step: (row.loss, row.token_digest) for path in paths for row in read_rows(path)}


@pytest.fixture(scope="module")
def calm(make: Callable[..., steelrail.Run]) -> dict[int, tuple[float, int]]:
    run = make("calm")
    record = train(run)
    assert [one["ending"] for one in record["attempts"]] == ["done"]
    return newest(run)


def wait_of(seconds: float) -> dict[str, Any]:
    return {"kind": "wait", "seconds": seconds, "at_step": AT, "rank": CULPRIT, "attempt": 1}


def show(what: str, record: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    first, second = record["attempts"]
    started, parts = second["started"], second["start"]
    line = (
        f"{what} of rank {CULPRIT} of {GPUS}: to the next attempt {started - record['disturbed']:.1f} s, to its first"
        f" step {started + sum(parts.values()) - record['disturbed']:.1f} s {parts}; {first['reason']}"
    )
    with capsys.disabled():
        sys.stdout.write(f"\n{line}\n")


def test_a_killed_rank_costs_the_steps_since_the_save_and_no_bit(
    make: Callable[..., steelrail.Run], calm: dict[int, tuple[float, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make("killed", wait_of(8.0))
    record = train(run, lambda beat: os.kill(beat.pid, signal.SIGKILL))
    assert [one["ending"] for one in record["attempts"]][1:] == ["done"]
    assert newest(run) == calm
    assert record["attempts"][1]["first_step"] == 31
    show("kill -9", record, capsys)


def test_a_hung_rank_is_named_with_the_collective_that_it_keeps_the_others_in(
    make: Callable[..., steelrail.Run], calm: dict[int, tuple[float, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make("hung", {"kind": "hang", "at_step": AT, "rank": CULPRIT, "attempt": 1})
    record = train(run, lambda beat: None)
    first, second = record["attempts"]
    assert (first["ending"], second["ending"]) == ("stalled", "done")
    assert newest(run) == calm
    assert f"rank {CULPRIT} " in first["reason"]
    assert GPUS == 1 or " of default_pg" in first["reason"]
    (folder,) = folders(run)
    assert "drills.py" in folder.log(1).read_text()
    show("hang", record, capsys)


def test_a_stopped_rank_is_ended_and_the_run_goes_on(
    make: Callable[..., steelrail.Run], calm: dict[int, tuple[float, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make("stopped", wait_of(5.0))
    record = train(run, lambda beat: os.kill(beat.pid, signal.SIGSTOP))
    assert [one["ending"] for one in record["attempts"]] == ["stalled", "done"]
    assert newest(run) == calm
    show("SIGSTOP", record, capsys)
