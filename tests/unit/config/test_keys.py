import json
from pathlib import Path

import pytest

from steelrail.config import keys
from steelrail.config.load import parse_run
from steelrail.config.schema import Run

DEMO = Path("config/demo.yaml").read_text()


def run(old: str = "", new: str = "") -> Run:
    assert old in DEMO
    return parse_run(DEMO.replace(old, new) if old else DEMO, "demo")


def train_key(one: Run) -> str:
    return keys.train_key(one, "data", None)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: demo", "name:    demo # comment"),
        ("minutes: 60", "minutes: 90"),
        ("partition: gpu", "partition: urgent"),
        ("lead_seconds: 60", "lead_seconds: 90"),
        ("every_steps: 25", "every_steps: 50"),
        ("nodes: 4, gpus_per_node: 16, ranks_per_node: 2", "nodes: 2, gpus_per_node: 16, ranks_per_node: 2"),
        ("pair_bytes: 1000000", "pair_bytes: 2000000"),
    ],
)
def test_placement_and_form_leave_the_training_key(old: str, new: str) -> None:
    assert train_key(run()) == train_key(run(old, new))
    assert keys.train_settings_key(run()) == keys.train_settings_key(run(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("learning_rate: 0.003", "learning_rate: 0.004"),
        ("steps: 200", "steps: 300"),
        ("precision: fp32", "precision: bf16"),
        ("num_layers: 4", "num_layers: 5"),
        ("global_batch_sequences: 8", "global_batch_sequences: 16"),
    ],
)
def test_mathematics_changes_the_training_key_alone(old: str, new: str) -> None:
    assert train_key(run()) != train_key(run(old, new))
    assert keys.shards_key(run(), "t") == keys.shards_key(run(old, new), "t")
    assert keys.cost_key(run(), "p") == keys.cost_key(run(old, new), "p")


def bad_step(**settings: object) -> Run:
    return run("precision: fp32", f"precision: fp32\n  bad_step: {json.dumps(settings)}")


def test_the_training_key_of_a_run_without_bad_step_is_what_it_was_before_there_was_one() -> None:
    # Another key would leave the checkpoints of every run behind. Only the demo's own mathematics may change it.
    assert (train_key(run()), keys.train_settings_key(run())) == ("6a37c87f3a68", "a9972f9976be")


def test_a_run_that_stops_at_bad_steps_has_the_training_key_of_one_that_meets_none() -> None:
    assert train_key(bad_step(policy="stop", spike_factor=3.0, spike_window=8, limit=3)) == train_key(run())


def test_steps_that_may_be_left_out_change_the_training_key_and_their_limit_does_not() -> None:
    skipping = (
        bad_step(policy="skip"),
        bad_step(policy="skip", spike_factor=3.0),
        bad_step(policy="skip", spike_factor=3.0, spike_window=8),
    )
    assert 4 == len({train_key(one) for one in (run(), *skipping)})
    assert train_key(bad_step(policy="skip", limit=3)) == train_key(skipping[0])
    assert train_key(bad_step(policy="skip", spike_window=8)) == train_key(skipping[0])


def test_where_a_roll_back_goes_changes_the_training_key_and_its_limit_does_not() -> None:
    rolling = (
        bad_step(policy="roll_back"),
        bad_step(policy="roll_back", back_steps=4),
        bad_step(policy="roll_back", back_steps=4, leave_out_steps=3),
        bad_step(policy="roll_back", spike_factor=3.0),
    )
    assert 6 == len({train_key(one) for one in (run(), bad_step(policy="skip"), *rolling)})
    assert train_key(bad_step(policy="roll_back", limit=3, spike_window=8)) == train_key(rolling[0])
    # As it was before there was a roll back.
    assert train_key(bad_step(policy="skip")) == "6b5da1f72caa"


def test_data_and_initial_weights_change_the_training_key() -> None:
    assert 3 == len({keys.train_key(run(), data, init) for data, init in (("a", None), ("b", None), ("a", "w"))})


def test_where_shard_jobs_run_leaves_the_shards_key() -> None:
    assert keys.shards_key(run(), "t") == keys.shards_key(run("memory_mb: 1500", "memory_mb: 3000"), "t")


def test_a_price_book_changes_the_cost_key_alone() -> None:
    assert keys.cost_key(run(), "p") != keys.cost_key(run(), "q")
