"""Attempts of one rank against a real checkpoint store (moto): where the state comes from that training starts with."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import boto3
import pytest
import torch
import torch.distributed as dist
from moto.server import ThreadedMotoServer
from rundir import shards_manifest
from safetensors.torch import save_file

from steelrail.artifacts.events import EventWriter
from steelrail.artifacts.files import write_artifact
from steelrail.artifacts.trainer import RunFolder
from steelrail.checkpoints import fence, retention
from steelrail.checkpoints.layout import StepId
from steelrail.checkpoints.lineage import left_out
from steelrail.checkpoints.manifest import decode
from steelrail.checkpoints.restore import RestoredFrom
from steelrail.clients.disk import node_root
from steelrail.clients.ranks import Master, RankPlace, free_port
from steelrail.clients.store import Store
from steelrail.config.keys import train_key
from steelrail.config.schema import BadStep, Model
from steelrail.errors import CheckpointError, ConfigError, InputError, StoreError
from steelrail.launch import meet, resume
from steelrail.launch.inputs import folder_digest
from steelrail.train.edge import build
from steelrail.train.generators import generator_state
from steelrail.train.history import History, to_plain
from steelrail.train.names import to_hugging_face
from steelrail.train.optimizer import state_for_checkpoint
from steelrail.train.parallel import local
from steelrail.train.shapes import parameter_shapes

CPU = torch.device("cpu")
PLACE = RankPlace(rank=0, world_size=1, local_rank=0, node_rank=0, num_nodes=1, host="node1")
MODEL = Model(dim=8, num_layers=2, num_heads=2, num_kv_heads=1, ffn_dim=12, vocab_size=10)


@pytest.fixture(scope="module")
def endpoint():
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        url = "http://{}:{}".format(*server.get_host_and_port())
        boto3.client("s3", endpoint_url=url, region_name="us-east-1").create_bucket(Bucket="bucket")
        yield url
        server.stop()


@pytest.fixture(scope="module")
def group():
    meet.join(PLACE, Master("127.0.0.1", free_port()), torch.device("cpu"), 20.0)
    yield
    dist.destroy_process_group()


@pytest.fixture
def weights(tmp_path):
    """A Hugging Face folder of random weights, by our names, and where it lies."""
    torch.manual_seed(3)
    whole = {name: torch.randn(shape) for name, shape in parameter_shapes(MODEL).items()}
    folder = tmp_path / "weights"
    folder.mkdir()
    save_file({to_hugging_face(name): tensor for name, tensor in whole.items()}, folder / "model.safetensors")
    return whole, folder


@pytest.fixture
def tuned(demo, change, tmp_path, endpoint, weights):
    """A run of one rank that starts from the weights."""
    run = change(demo, "train", model=MODEL, init_from=str(weights[1]))
    run = change(run, "store", endpoint=endpoint, bucket="bucket", prefix=tmp_path.name, retry_seconds=2.0)
    run = change(run, "node", nvme=str(tmp_path / "nvme"))
    manifest = shards_manifest(run)
    write_artifact(RunFolder(tmp_path / "nvme" / "train" / key_of(run, manifest)).shards_manifest, manifest)
    return change(run, "shape", nodes=1, ranks_per_node=1)


def key_of(run, manifest):
    weights = Path(run.train.init_from)
    return train_key(run, manifest.data_digest, folder_digest(weights, weights.with_name("digests.json")))


def run_folder_of(run):
    """Return the folder of the fixture's key; what a test changes of the run later leaves it."""
    return RunFolder(next(path for path in (Path(run.node.nvme) / "train").iterdir() if path.is_dir()))


class Attempt:
    """One attempt of one rank, as far as the start of training."""

    def __init__(self, run, number=None):
        self.run, self.said, self.beats = run, [], []
        epoch = fence.claim(Store.open(run.store), run.name, "key")
        self.rank = SimpleNamespace(
            run=run,
            key="key",
            epoch=epoch,
            attempt=number or epoch,
            folder=run_folder_of(run),
            place=PLACE,
            events=SimpleNamespace(write=self.say, enter=lambda category: self.say("enter", category=category)),
            pulse=SimpleNamespace(step=None, doing="", beat=lambda step, doing: self.beats.append(doing)),
            enter=lambda category, doing: self.say("enter", category=category),
        )
        self.state = build(run, CPU)
        for tensor in self.tensors().values():
            tensor.fill_(float("nan"))
        for part in (self.state.optimizer.exp_avg, self.state.optimizer.exp_avg_sq):
            for tensor in part.values():
                local(tensor).zero_()
        resumed = resume.resume(self.rank, self.state, CPU)
        self.checkpoints, self.step, self.rollbacks = resumed.checkpoints, resumed.step, resumed.rollbacks

    def say(self, kind, **data):
        self.said.append((kind, data))

    def tensors(self):
        return {name: local(tensor) for name, tensor in state_for_checkpoint(self.state.optimizer)["model"].items()}

    def save(self, step, heldout_loss=None, generators=True, close=True):
        state = state_for_checkpoint(self.state.optimizer)
        said = {**resume.said_of_a_save(self.rank, heldout_loss), **to_plain(self.state.history)}
        self.checkpoints.save(state, step, step * 10, said, generator_state(CPU) if generators else None)
        assert self.checkpoints.flush(20.0)
        if close:
            self.checkpoints.close()

    def notes(self):
        return [data["text"] for kind, data in self.said if kind == "note"]


def move(attempt):
    """Training: weights and moments are others now."""
    for index, tensor in enumerate(attempt.tensors().values()):
        tensor.add_(1.0 + index)
    for moment in (*attempt.state.optimizer.exp_avg.values(), *attempt.state.optimizer.exp_avg_sq.values()):
        local(moment).fill_(0.25)


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


def test_a_model_without_a_checkpoint_begins_from_its_initial_weights(tuned, weights, group):
    attempt = Attempt(tuned)
    assert_equal(attempt.tensors(), weights[0])
    assert (attempt.step, attempt.state.optimizer.step) == (0, 0)
    assert set(attempt.beats) >= {"first weights"}
    assert [data["category"] for kind, data in attempt.said if kind == "enter"] == ["restore", "startup"]


def test_a_model_never_begins_from_other_weights_than_those_of_its_key(tuned, weights, group):
    save_file({name: tensor + 1.0 for name, tensor in weights[0].items()}, weights[1] / "model.safetensors")
    with pytest.raises(InputError, match="initial weights must be those of key"):
        Attempt(tuned)


def test_a_model_without_initial_weights_begins_from_its_seed(tuned, change, group):
    first, second = (Attempt(change(tuned, "train", init_from=None, seed=seed)).tensors() for seed in (1, 1))
    assert_equal(first, second)
    assert 0.01 < float(first["embedding.weight"].std()) < 0.03


def test_a_resumed_model_equals_the_saved_one_and_its_initial_weights_may_be_gone(tuned, weights, group):
    first = Attempt(tuned)
    move(first)
    first.save(5)
    shutil.rmtree(weights[1])
    again = Attempt(tuned)
    assert_equal(again.tensors(), first.tensors())
    assert all(bool((local(one) == 0.25).all()) for one in again.state.optimizer.exp_avg.values())
    assert (again.step, again.state.optimizer.step) == (5, 5)
    assert again.notes() == [] and "first weights" not in again.beats


def test_a_checkpoint_that_is_lost_is_an_error_and_never_a_new_beginning(tuned, group):
    first = Attempt(tuned)
    first.save(5)
    store = Store.open(tuned.store)
    for found in list(store.list(store.key(tuned.name, "key", "steps"))):
        store.delete(found.key)
    shutil.rmtree(node_root(tuned))
    with pytest.raises(CheckpointError, match="some checkpoint must be provable"):
        Attempt(tuned)


def test_a_bucket_that_was_emptied_is_an_error_where_the_run_knows_of_a_durable_step(tuned, group):
    first = Attempt(tuned)
    first.save(5)
    events = EventWriter(first.rank.folder.events(1, 0), 1, 0, "node1", lambda: 0.0)
    events.write("durable", step=5, where="store", bytes=1, seconds=0.1)
    events.close()
    store = Store.open(tuned.store)
    for found in list(store.list(store.key(tuned.name, "key"))):
        store.delete(found.key)
    shutil.rmtree(node_root(tuned))
    with pytest.raises(CheckpointError, match=r"some checkpoint must be provable, is none .* step 5 was durable"):
        Attempt(tuned, number=2)
    # What would void the checkpoints, should they come back, was not written down.
    assert fence.resumes(store, tuned.name, "key") == ()


def test_the_manifest_keeps_what_decided_the_bits(tuned, group):
    attempt = Attempt(tuned)
    attempt.save(5)
    store = Store.open(tuned.store)
    (key,) = (one.key for one in store.list(store.key(tuned.name, "key", "steps")) if one.key.endswith("manifest.json"))
    extra = decode(store.get(key), key).extra
    assert extra["attempt"] == 1
    assert (extra["mesh.world_size"], extra["version.torch"]) == ("1", torch.__version__)


@pytest.mark.parametrize(("measured", "kept"), [(2.0, 2.0), (None, None), (float("nan"), None)])
def test_the_manifest_keeps_the_heldout_loss_of_its_step(tuned, group, measured, kept):
    Attempt(tuned).save(5, measured)
    (found,) = retention.survey(Store.open(tuned.store), tuned.name, "key")
    assert (found.fault, found.heldout_loss) == (None, kept)
    assert Attempt(tuned).notes() == []


def test_steps_left_out_and_the_tail_of_the_loss_survive_a_restart_and_count_as_no_updates(tuned, group):
    first = Attempt(tuned)
    first.state.history.skipped.extend([2, 4])
    first.state.history.losses.extend([2.5, 1 / 3])
    first.save(5)
    again = Attempt(tuned)
    assert again.state.history == History([2.5, 1 / 3], [2, 4])
    assert (again.step, again.state.optimizer.step) == (5, 3)


@pytest.fixture
def rolling(tuned, change):
    """A run that rolls back by at least three good steps."""
    run = change(tuned, "train", bad_step=BadStep(policy="roll_back", back_steps=3, leave_out_steps=2))
    root = run_folder_of(tuned).root
    root.rename(root.with_name(key_of(run, shards_manifest(run))))
    return run


def saved_at(run, *steps):
    """An attempt that saved at these steps, as far as it came."""
    attempt = Attempt(run)
    for step in steps:
        move(attempt)
        attempt.save(step, close=step == steps[-1])
    return attempt


def roll_back(attempt, step):
    resume.roll_back(attempt.rank, attempt.checkpoints, step, "loss must be finite, is nan")


def test_after_a_roll_back_the_newest_checkpoint_that_is_old_enough_is_taken_up(rolling, group):
    first = saved_at(rolling, 5, 10, 15)
    roll_back(first, 17)
    assert first.said[-1] == (
        "rolled_back", {"step": 17, "at_most": 13, "first": 16, "why": "loss must be finite, is nan"}
    )  # fmt: skip
    again = Attempt(rolling)
    assert (again.step, left_out(again.rollbacks), len(again.rollbacks)) == (10, {16, 17}, 1)
    assert again.notes() == []


def test_an_attempt_that_died_before_it_resumed_leaves_the_roll_back_to_the_next(rolling, group):
    roll_back(saved_at(rolling, 5, 10, 15), 17)
    fence.claim(Store.open(rolling.store), rolling.name, "key")
    assert Attempt(rolling).step == 10


def test_the_old_branch_stays_behind_and_the_new_one_goes_on(rolling, group):
    roll_back(saved_at(rolling, 5, 10, 15), 17)
    Attempt(rolling)  # began, and died before it saved anything
    second = Attempt(rolling)
    assert second.step == 10
    second.save(12)
    third = Attempt(rolling)
    # Newer than the roll back allowed, and on its branch; the old 15 is still there and counts no more.
    assert (third.step, left_out(third.rollbacks)) == (12, {16, 17})


def test_where_no_checkpoint_was_ever_old_enough_training_begins_anew_and_says_so(rolling, weights, group):
    roll_back(saved_at(rolling, 5), 7)
    again = Attempt(rolling)
    assert (again.step, again.state.optimizer.step) == (0, 0)
    assert again.notes() == ["rolled back to the very start: the store never had a checkpoint up to step 3"]
    assert all(torch.equal(value, weights[0][name]) for name, value in again.tensors().items())
    assert Attempt(rolling).step == 0


def test_a_roll_back_from_another_clone_lets_go_of_what_this_one_knows_was_durable(rolling, group):
    first = saved_at(rolling, 5)
    # Its own events say nothing of a roll back.
    events = EventWriter(first.rank.folder.events(1, 0), 1, 0, "node1", lambda: 0.0)
    events.write("durable", step=5, where="store", bytes=1, seconds=0.1)
    events.close()
    roll_back(first, 7)
    assert Attempt(rolling, number=2).step == 0


def test_where_the_checkpoint_that_is_old_enough_was_lost_nothing_begins_anew(rolling, group):
    first = saved_at(rolling, 5, 10, 15)
    roll_back(first, 9)
    shutil.rmtree(first.checkpoints._home.folder(StepId(5, 1)), ignore_errors=True)
    store = Store.open(rolling.store)
    for found in store.list(store.key(rolling.name, "key", "steps", StepId(5, 1).folder)):
        store.delete(found.key)
    with pytest.raises(CheckpointError, match="a bad step was rolled back to step 5 or before"):
        Attempt(rolling)


def test_a_roll_back_that_could_not_be_recorded_is_none(rolling, group, monkeypatch):
    first = saved_at(rolling, 5, 10, 15)
    monkeypatch.setattr(fence, "record_rollback", lambda *_: (_ for _ in ()).throw(StoreError("away")))
    with pytest.raises(StoreError, match="away"):
        roll_back(first, 17)
    again = Attempt(rolling)
    assert (again.step, again.rollbacks) == (15, ())


def test_random_numbers_go_on_after_a_restart_as_if_there_had_been_none(tuned, group):
    first = Attempt(tuned)
    torch.rand(3)
    first.save(5)
    undisturbed = torch.rand(8)
    again = Attempt(tuned)
    assert torch.equal(undisturbed, torch.rand(8))
    assert again.notes() == []


def test_a_checkpoint_without_random_generators_is_taken_up_and_said_to_draw_anew(tuned, group):
    first = Attempt(tuned)
    torch.rand(3)
    first.save(5, generators=False)
    undisturbed = torch.rand(8)
    again = Attempt(tuned)
    drawn = torch.rand(8)
    assert not torch.equal(undisturbed, drawn)
    assert again.notes() == ["random generators are seeded anew: the checkpoint of step 5 holds no state of them"]
    Attempt(tuned)
    assert torch.equal(drawn, torch.rand(8))


def test_at_another_world_size_every_rank_draws_anew_and_rank_0_says_so(tuned, group):
    attempt, drawn = Attempt(tuned), []
    found = RestoredFrom(5, 1, 50, 8, {}, None, "nvme", 0.1, ())
    for number in range(2):
        attempt.rank.place = replace(PLACE, rank=number, world_size=2)
        resume._take_up_generators(attempt.rank, found, CPU)
        drawn.append(torch.rand(8))
    assert not torch.equal(*drawn)
    assert attempt.notes() == ["random generators are seeded anew: the checkpoint of step 5 is of 8 ranks, not 2"]


def test_another_setting_is_refused_and_another_mesh_is_written_down(tuned, change, group, monkeypatch):
    Attempt(tuned).save(5)
    monkeypatch.setenv("NCCL_BUFFSIZE", "1")
    with pytest.raises(ConfigError, match="NCCL_BUFFSIZE must be not set, as at step 5, is 1"):
        Attempt(tuned)
    monkeypatch.delenv("NCCL_BUFFSIZE")
    (note,) = Attempt(change(tuned, "slurm", cpus_per_rank=2)).notes()
    assert note == "equality to the last bit ends at step 5: cpus_per_rank was 1, is 2"
