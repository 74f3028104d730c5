"""What ``steelrail checkpoints`` says and removes, against a store (moto)."""

import json
import time

import boto3
import pytest
from moto import mock_aws
from rundir import write_inputs

from steelrail.artifacts.files import results_folder
from steelrail.checkpoints import fence
from steelrail.checkpoints.layout import MANIFEST, METADATA, StepId
from steelrail.checkpoints.manifest import CheckpointFile, Manifest, encode
from steelrail.checkpoints.retention import STALE_UPLOAD_SECONDS
from steelrail.cli import main
from steelrail.clients.holder import this_process
from steelrail.clients.store import Store
from steelrail.errors import BusyError, ClusterError, InputError
from steelrail.formats.squeue import QueueRow
from steelrail.launch import checkpoints
from steelrail.launch.freeze import run_folder
from steelrail.launch.jobs import JobLine, add_job
from steelrail.launch.lock import only_driver


@pytest.fixture
def run(here, change, monkeypatch):
    """A local run whose rules keep one newest and one best."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="bucket")
        store = here.store.model_copy(update={"bucket": "bucket", "endpoint": None, "retry_seconds": 0.0})
        run = change(change(here, "slurm", executor="local"), "checkpoints", keep_last=1, keep_best=1)
        yield run.model_copy(update={"store": store})


class Kept:
    """The run's checkpoints in the store, as attempts leave them."""

    def __init__(self, run):
        self.run, self.store, self.key = run, Store.open(run.store), write_inputs(run).key
        self.epoch = fence.claim(self.store, run.name, self.key)

    def folder(self, step):
        return self.store.key(self.run.name, self.key, "steps", StepId(step, self.epoch).folder)

    def save(self, step, loss=None, manifest=True):
        self.store.put(f"{self.folder(step)}/{METADATA}", b"xyz")
        if manifest:
            self.store.put(f"{self.folder(step)}/{MANIFEST}", encode(self._manifest(step, loss)))

    def _manifest(self, step, loss):
        file = CheckpointFile(name=METADATA, size_bytes=3, sha256="", rank=0, node_rank=0, host="node1")
        return Manifest(
            run=self.run.name, key=self.key, step=step, epoch=self.epoch, tokens=0, world_size=1, num_nodes=1,
            files=(file,), parent_step=None, parent_epoch=None, created=time.time() - 7200.0, versions={},
            extra={} if loss is None else {"heldout_loss": loss},
        )  # fmt: skip

    def there(self):
        return sorted({line.step for line in checkpoints.look(self.run).lines})


@pytest.fixture
def kept(run):
    """Steps 25 (best), 50, 75, 100 (newest), and an upload of 125 that has just begun."""
    kept = Kept(run)
    for step, loss in ((25, 2.5), (50, 3.0), (75, None), (100, 3.5)):
        kept.save(step, loss)
    kept.save(125, manifest=False)
    return kept


def age(monkeypatch):
    """Let more time pass than an upload may take."""
    later = time.time() + STALE_UPLOAD_SECONDS + 60.0
    monkeypatch.setattr("steelrail.clients.clock.now", lambda: later)


def test_without_shards_there_is_no_key_and_the_error_says_so(run):
    with pytest.raises(InputError, match="manifest"):
        checkpoints.look(run)


def test_a_run_without_checkpoints_has_none_and_a_sweep_removes_nothing(run):
    write_inputs(run)
    assert checkpoints.sweep(run).lines == ()
    assert checkpoints.look(run).text().endswith("nothing to remove")


def test_a_look_says_of_each_checkpoint_whether_it_is_kept_and_why(run, kept):
    found = checkpoints.look(run)
    assert [(line.step, line.keeps, line.why) for line in found.lines] == [
        (125, True, "perhaps still being uploaded"),
        (100, True, "newest 1"),
        (75, False, "older than the newest 1"),
        (50, False, "older than the newest 1"),
        (25, True, "best 1 by held-out loss (2.5000)"),
    ]
    assert [line.provable for line in found.lines] == [None, "store", "store", "store", "store"]
    assert 7190 < found.lines[1].age_seconds < 7300
    assert found.lines[0].age_seconds < 60


def test_a_look_removes_nothing_and_its_text_says_what_would_go(run, kept):
    text = checkpoints.look(run).text()
    assert "would go: 2 of 5 checkpoints" in text
    assert "nothing was removed" in text
    assert kept.there() == [25, 50, 75, 100, 125]


def test_the_text_is_a_table_with_its_columns_aligned(run, kept):
    lines = checkpoints.look(run).text().splitlines()
    assert lines[0].startswith(f"run demo, key {kept.key}: 5 checkpoints, ")
    assert lines[1].split() == ["step", "epoch", "size", "age", "provable", "held-out", "kept"]
    assert len({line.index(" yes: ") for line in (lines[2], lines[3], lines[6])}) == 1
    assert lines[6].split()[:3] == ["25", "1", lines[6].split()[2]]


def test_a_sweep_removes_what_is_not_kept_and_says_so(run, kept):
    found = checkpoints.sweep(run)
    assert found.text().splitlines()[-1].startswith("removed: 2 of 5 checkpoints")
    assert kept.there() == [25, 100, 125]
    left = [one.key for one in kept.store.list(kept.store.key(run.name, kept.key, "steps"))]
    assert not [key for key in left if key.startswith((kept.folder(50), kept.folder(75)))]


def test_a_second_sweep_finds_nothing(run, kept):
    checkpoints.sweep(run)
    assert checkpoints.sweep(run).text().endswith("nothing to remove")


def test_a_dead_attempts_upload_goes_once_it_is_old(run, kept, monkeypatch):
    age(monkeypatch)
    assert [line.step for line in checkpoints.sweep(run).lines if not line.keeps] == [125, 75, 50]
    assert kept.there() == [25, 100]


def test_an_unfinished_upload_of_parts_goes_once_it_is_old(run, kept, monkeypatch):
    client = kept.store._client
    client.create_multipart_upload(Bucket="bucket", Key=f"{kept.folder(125)}/__0_0.distcp")
    client.create_multipart_upload(Bucket="bucket", Key="elsewhere/x")
    age(monkeypatch)
    found = checkpoints.look(run)
    assert found.stale_uploads == (f"{kept.folder(125)}/__0_0.distcp",)
    assert "unfinished uploads of parts: 1" in found.text()
    checkpoints.sweep(run)
    assert [one["Key"] for one in client.list_multipart_uploads(Bucket="bucket")["Uploads"]] == ["elsewhere/x"]


def test_a_replaced_checkpoint_is_void_and_goes(run, kept):
    kept.epoch = fence.claim(kept.store, run.name, kept.key)
    fence.record_resume(kept.store, run.name, kept.key, kept.epoch, StepId(50, 1))
    kept.save(75, 9.0)
    found = checkpoints.look(run)
    void = {(line.step, line.epoch): line.cells[4] for line in found.lines if line.void}
    assert void == {(100, 1): "void", (75, 1): "void"}
    checkpoints.sweep(run)
    assert kept.there() == [25, 75]


def test_damaged_ones_alone_are_never_removed(run, kept, monkeypatch):
    for step in (25, 50, 75, 100):
        kept.store.delete(f"{kept.folder(step)}/{METADATA}")
    age(monkeypatch)
    found = checkpoints.sweep(run)
    assert not [line for line in found.lines if not line.keeps]
    assert f"{METADATA} is missing" in found.lines[1].fault
    assert kept.there() == [25, 50, 75, 100, 125]


def test_no_sweep_beside_a_living_local_job(run, kept):
    add_job(run_folder(run, kept.key), JobLine("77", 0.0, "", "", "", this_process().text()))
    with pytest.raises(BusyError, match=r"run demo must be without a living training job, .*\(local job 77\)"):
        checkpoints.sweep(run)
    assert kept.there() == [25, 50, 75, 100, 125]


def test_no_sweep_beside_a_job_of_another_key(run, kept):
    add_job(run_folder(run, "0" * 12), JobLine("77", 0.0, "", "", "", this_process().text()))
    with pytest.raises(BusyError, match="local job 77"):
        checkpoints.sweep(run)


def test_no_sweep_beside_a_job_in_slurm(run, kept, change, monkeypatch):
    rows = [QueueRow("15", "PENDING", "BeginTime", "demo.train", "")]
    monkeypatch.setattr("steelrail.clients.slurm.Slurm.queue", lambda self, user, name: rows)
    with pytest.raises(BusyError, match=r"\(job 15, pending\)"):
        checkpoints.sweep(change(run, "slurm", executor="slurm"))
    assert kept.there() == [25, 50, 75, 100, 125]


def test_no_sweep_where_nobody_can_tell_whether_a_job_lives(run, kept, change, monkeypatch):
    def away(*_):
        raise ClusterError("Slurm does not answer")

    monkeypatch.setattr("steelrail.clients.slurm.Slurm.queue", away)
    with pytest.raises(ClusterError):
        checkpoints.sweep(change(run, "slurm", executor="slurm"))
    assert kept.there() == [25, 50, 75, 100, 125]


def test_no_sweep_beside_a_driver(run, kept):
    with only_driver(results_folder(run), run.name), pytest.raises(BusyError, match="driven by one process"):
        checkpoints.sweep(run)


def test_a_sweep_ends_at_once_when_an_attempt_begins_beside_it(run, kept, monkeypatch):
    current = fence.current
    monkeypatch.setattr(fence, "require_newest", _claim_first(fence.require_newest))
    with pytest.raises(BusyError, match="without a new attempt meanwhile"):
        checkpoints.sweep(run)
    assert current(kept.store, run.name, kept.key) == 2
    assert kept.there() == [25, 50, 75, 100, 125]


def _claim_first(require):
    def claimed(store, run, key, epoch):
        fence.claim(store, run, key)
        require(store, run, key, epoch)

    return claimed


SHOWN, REMOVED = [25, 50, 75, 100, 125], [25, 100, 125]


@pytest.mark.parametrize(
    ("options", "left"),
    [((), SHOWN), (("--dry-run",), SHOWN), (("--sweep", "--dry-run"), SHOWN), (("--sweep",), REMOVED)],
)
def test_only_a_sweep_that_is_no_dry_run_removes(run, kept, monkeypatch, capsys, options, left):
    monkeypatch.setattr("steelrail.cli.load_run", lambda path: run)
    assert main(["checkpoints", "--json", *options]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["swept"], len(said["lines"])) == (left == REMOVED, 5)
    assert kept.there() == left
