from decimal import Decimal

import pytest
from rundir import write_inputs

from steelrail.errors import InputError
from steelrail.launch import edge
from steelrail.launch.plan import show_plan


def test_the_plan_of_the_reference_job_shows_memory_time_and_dollars(llama):
    text = show_plan(llama, None, Decimal("3.99"))
    assert "64 GPUs (4 x 16), 64 ranks on cuda" in text
    assert "70,553.7 M parameters, bf16" in text
    assert "$255.36 an hour" in text
    assert "memory a rank: " in text
    assert "an assumed MFU of 40% (449 GFLOP a token, 64 x 989 TFLOP/s of dense bf16)" in text


def test_without_a_price_no_dollars_are_made_up(llama):
    assert "cost: no price known" in show_plan(llama, None, None)


def test_the_key_is_shown_once_the_data_are_there(here):
    inputs = write_inputs(here)
    text = show_plan(here, inputs, Decimal("3.99"))
    assert f"key {inputs.key}" in text
    assert "1,000 tokens in 1 data shards" in text


def test_the_plan_needs_no_slurm_and_shows_the_request(here, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    text = edge.plan(here)
    assert "#SBATCH --nodes=4" in text
    assert "known once the data shards are made" in text


def test_the_plan_refuses_weights_that_are_not_the_models(here, change, tmp_path):
    (tmp_path / "weights").mkdir()
    with pytest.raises(InputError, match="weights must be a safetensors file"):
        edge.plan(change(here, "train", init_from=str(tmp_path / "weights")))


def test_the_plan_says_when_it_cannot_see_the_weights(here, change, tmp_path):
    text = edge.plan(change(here, "train", init_from=str(tmp_path / "elsewhere")))
    assert "train.init_from must be a folder here, is missing" in text
    assert "#SBATCH --nodes=4" in text


@pytest.fixture
def local(here, change):
    return change(here, "slurm", executor="local", setup=("module load x",))


def test_the_plan_of_a_local_run_speaks_of_no_slurm_and_no_dollars(local):
    text = edge.plan(local)
    assert "#SBATCH" not in text
    assert "$" not in text
    assert "segment" not in text
    assert "8 ranks on cpu, all on this host, without Slurm" in text
    assert "cost: unavailable, no Slurm accounts for a local run" in text
    assert text.splitlines()[-4:] == [
        "# not for Slurm: 8 ranks on this host, without a time limit or a place in a queue",
        "umask 077",
        "module load x",
        "# ranks: GLOO_SOCKET_IFNAME=eth0",
    ]


def test_a_budget_of_a_local_run_is_said_to_run_down_at_the_shapes_price(local, change):
    text = edge.plan(change(local, "cost", budget_usd="10"))
    assert "the budget of $10 runs down as if it were $255.36 an hour (runpod h100-sxm-secure)" in text
