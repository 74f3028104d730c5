import json

import boto3
import pyarrow.parquet as pq
import pytest
from moto import mock_aws
from rundir import attempt, frozen_folder, rank_did, write_inputs

from steelrail.artifacts.events import EventWriter
from steelrail.artifacts.train import Ending
from steelrail.checkpoints.layout import MANIFEST, METADATA, StepId
from steelrail.checkpoints.manifest import CheckpointFile, Manifest, encode
from steelrail.clients.store import Store
from steelrail.errors import TrainError
from steelrail.formats.sacct import SacctRow
from steelrail.launch.finished import finished
from steelrail.launch.freeze import read_frozen
from steelrail.launch.policy import Action
from steelrail.launch.record import finished_record, metrics_path, record_path, write_record


@pytest.fixture
def trained(here):
    """A run of two attempts: requeued after step 4, then done at step 6."""
    inputs = write_inputs(here)
    folder = frozen_folder(here, inputs)
    attempt(folder, 1, Ending.REQUEUED)
    rank_did(folder, 1, [1, 2, 3, 4], durable=[2], heldout=[(0, 9.0)])
    attempt(folder, 2, Ending.DONE, Action.FINISH, segment=1)
    rank_did(folder, 2, [3, 4, 5, 6], durable=[4, 6], resumed=2, heldout=[(6, 7.5)])
    return here, inputs, folder


def write(trained, rows=None):
    _, inputs, folder = trained
    frozen_run, frozen = read_frozen(folder)
    return write_record(frozen_run, frozen, inputs, folder, rows or {})


def test_the_record_tells_every_attempt_with_its_steps(trained):
    record = write(trained)
    assert [(one.first_step, one.last_step, one.resumed_from, one.ending) for one in record.attempts] == [
        (1, 4, None, Ending.REQUEUED),
        (3, 6, 2, Ending.DONE),
    ]
    assert [one.step_id for one in record.attempts] == ["15.0", "15.1"]
    assert (record.final_step, record.ending, record.job_ids) == (6, Ending.DONE, ("15",))
    assert (record.heldout_first, record.heldout_last) == (9.0, 7.5)
    assert record.tokens == 6 * 8 * 256


def test_the_final_checkpoint_is_the_newest_in_the_store_with_its_epoch(trained):
    _, inputs, _ = trained
    expected = f"s3://steelrail/steelrail/demo/{inputs.key}/steps/0000000006-00000002"
    assert write(trained).final_checkpoint == expected


def test_a_checkpoint_that_was_only_taken_up_from_the_store_is_the_final_one(here):
    inputs = write_inputs(here)
    folder = frozen_folder(here, inputs)
    attempt(folder, 1, Ending.DONE, Action.FINISH)
    events = EventWriter(folder.events(1, 0), 1, 0, "node1", lambda: 1000.0)
    events.write("restore", step=6, epoch=4, where="nvme", seconds=1.0)
    events.close()
    rank_did(folder, 1, [])
    record = write((here, inputs, folder))
    assert record.final_checkpoint.endswith("/steps/0000000006-00000004") and record.final_step == 6


def test_metrics_hold_a_row_for_every_step_of_every_attempt(trained):
    write(trained)
    table = pq.read_table(record_path(trained[0]).with_name("metrics.parquet")).to_pydict()
    assert list(zip(table["attempt"], table["step"], strict=True)) == [
        *((1, step) for step in (1, 2, 3, 4)),
        *((2, step) for step in (3, 4, 5, 6)),
    ]


def row(state, start, end):
    counts = {"num_nodes": 2, "gpus": 32, "cpus": 8, "billing": 8}
    texts = {"nodes": (), "partition": "gpu", "user": "me", "reason": "", "name": "x", "comment": ""}
    codes = {"exit_code": 0, "exit_signal": 0, "derived_exit_code": 0, "elapsed_seconds": 0}
    return SacctRow(job_id="15", step=None, state=state, submit=0.0, start=start, end=end, **codes, **counts, **texts)


def test_the_accounts_tell_a_preemption_from_a_requeue_by_hand(trained):
    rows = {"15": (row("PREEMPTED", 1.0, 9e9),)}
    assert write(trained, rows).attempts[0].ending is Ending.PREEMPTION
    assert write(trained, {"15": (row("REQUEUED", 1.0, 9e9),)}).attempts[0].ending is Ending.REQUEUED


def test_the_mfu_is_that_of_the_last_attempt_with_more_than_its_first_steps(llama, tmp_path):
    run = llama.model_copy(
        update={"results": str(tmp_path), "train": llama.train.model_copy(update={"init_from": None})}
    )
    inputs = write_inputs(run)
    folder = frozen_folder(run, inputs)
    attempt(folder, 1, Ending.REQUEUED)
    rank_did(folder, 1, [1, 2, 3, 4, 5], durable=[5])
    attempt(folder, 2, Ending.DONE, Action.FINISH, segment=1)
    rank_did(folder, 2, [6], durable=[6], resumed=5)
    assert write((run, inputs, folder)).mfu == pytest.approx(449.23e9 * 2048 / (64 * 989e12), rel=1e-3)


def test_on_the_cpu_there_is_no_mfu(trained):
    assert write(trained).mfu is None


def test_a_finished_run_is_recognised_by_its_key(trained):
    record = write(trained)
    assert finished_record(trained[0], record.key) == record
    assert finished_record(trained[0], "ffffffffffff") is None


def test_a_torn_record_is_no_record(trained):
    record = write(trained)
    path = record_path(trained[0])
    path.write_text(path.read_text()[:-40])
    assert finished_record(trained[0], record.key) is None


def test_no_secret_and_no_price_file_path_is_in_the_placement(trained):
    placement = write(trained).placement
    assert placement["environment.GLOO_SOCKET_IFNAME"] == "eth0"
    assert "aws" not in json.dumps(placement).lower()


@pytest.fixture
def stored(here, monkeypatch):
    """A run without events whose store answers."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="bucket")
        store = here.store.model_copy(update={"bucket": "bucket", "endpoint": None, "retry_seconds": 0.0})
        run = here.model_copy(update={"store": store})
        inputs = write_inputs(run)
        folder = frozen_folder(run, inputs)
        attempt(folder, 1, Ending.DONE, Action.FINISH)
        yield run, inputs, folder


def put_checkpoint(run, key, which, data=b"xyz"):
    store = Store.open(run.store)
    file = CheckpointFile(name=METADATA, size_bytes=3, sha256="", rank=0, node_rank=0, host="node1")
    manifest = Manifest(
        run=run.name, key=key, step=which.step, epoch=which.epoch, tokens=0, world_size=1, num_nodes=1, files=(file,),
        parent_step=None, parent_epoch=None, created=1.0, versions={}, extra={},
    )  # fmt: skip
    folder = store.key(run.name, key, "steps", which.folder)
    store.put(f"{folder}/{METADATA}", data)
    store.put(f"{folder}/{MANIFEST}", encode(manifest))


def test_a_finished_run_without_a_checkpoint_in_the_store_is_an_error(stored):
    rank_did(stored[2], 1, [1, 2])
    with pytest.raises(TrainError, match="final checkpoint must be in the store"):
        write(stored)


def test_where_the_events_are_gone_the_store_names_the_newest_checkpoint_that_it_can_prove(stored):
    run, inputs, _ = stored
    for which in (StepId(4, 1), StepId(6, 1)):
        put_checkpoint(run, inputs.key, which)
    put_checkpoint(run, inputs.key, StepId(8, 1), data=b"torn, so of another size")
    record = write(stored)
    assert record.final_checkpoint == f"s3://bucket/steelrail/demo/{inputs.key}/steps/0000000006-00000001"
    assert (record.final_step, record.tokens) == (6, 6 * 8 * 256)


def test_metrics_that_are_missing_beside_the_record_are_made_anew_from_what_the_attempts_left(trained):
    run, inputs, _ = trained
    record = write(trained)
    before = metrics_path(run).read_bytes()
    metrics_path(run).unlink()
    assert finished(run, inputs) == record
    assert metrics_path(run).read_bytes() == before


def test_metrics_whose_rows_are_gone_too_are_named_and_no_empty_table_stands_for_them(trained, caplog):
    run, inputs, folder = trained
    record = write(trained)
    for path in (metrics_path(run), folder.metrics(1), folder.metrics(2)):
        path.unlink()
    assert finished(run, inputs) == record
    assert f"{metrics_path(run)} is missing, and so are the rows" in caplog.text
    assert not metrics_path(run).exists()


def test_metrics_that_are_there_are_left_as_they_are(trained):
    run, inputs, _ = trained
    write(trained)
    metrics_path(run).write_bytes(b"as it was")
    finished(run, inputs)
    assert metrics_path(run).read_bytes() == b"as it was"
