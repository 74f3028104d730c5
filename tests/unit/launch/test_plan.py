from decimal import Decimal

from rundir import write_inputs

from steelrail.launch import edge
from steelrail.launch.plan import show_plan


def test_the_plan_of_the_reference_job_shows_memory_time_and_dollars(llama):
    text = show_plan(llama, None, Decimal("3.99"))
    assert "64 GPUs (4 x 16), 64 ranks on cuda" in text
    assert "70,553.7 M parameters, bf16" in text
    assert "$255.36 an hour" in text
    assert "memory a rank: " in text


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
