import json
from typing import Any

import pytest

from steelrail.config.schema import Model, Run
from steelrail.train.plan import (
    block_parameters,
    communication_floor_seconds,
    flops_per_token,
    keeps_whole,
    memory,
    mfu,
    num_parameters,
    plan,
    usual_mfu,
)

LLAMA_70B = {"dim": 8192, "num_layers": 80, "num_heads": 64, "num_kv_heads": 8, "ffn_dim": 28672, "vocab_size": 128256}
LLAMA_8B = {"dim": 4096, "num_layers": 32, "num_heads": 32, "num_kv_heads": 8, "ffn_dim": 14336, "vocab_size": 128256}
LLAMA_1B = {"dim": 2048, "num_layers": 16, "num_heads": 32, "num_kv_heads": 8, "ffn_dim": 8192, "vocab_size": 128256}


def run(model: dict[str, Any], batch: int = 64, shape: dict[str, Any] | None = None, **train: Any) -> Run:
    return Run.model_validate_json(
        json.dumps(
            {
                "name": "reference",
                "corpus": {"paths": ["x"]},
                "shards": {"tokenizer": "x"},
                "shape": {"nodes": 4, "gpus_per_node": 16, "ranks_per_node": 16, **(shape or {})},
                "store": {"bucket": "steelrail"},
                "train": {
                    "model": model,
                    "optimizer": {"learning_rate": 1e-5},
                    "steps": 1000,
                    "global_batch_sequences": batch,
                    **train,
                },
            }
        )
    )


def test_llama_3_70b_has_its_published_parameters() -> None:
    model = Model.model_validate(LLAMA_70B)
    assert block_parameters(model) == 855_654_400
    assert num_parameters(model) == 70_553_706_496


def test_tied_embeddings_count_once() -> None:
    tied = num_parameters(Model.model_validate({**LLAMA_1B, "tied_embeddings": True}))
    assert tied == 1_235_814_400  # as published for Llama 3.2 1B
    assert num_parameters(Model.model_validate(LLAMA_1B)) - tied == 128_256 * 2048


@pytest.mark.parametrize(("model", "expected"), [(LLAMA_8B, 51.47e9), (LLAMA_1B, 9.03e9)])
def test_flops_per_token_count_the_causal_half_of_attention(model: dict[str, Any], expected: float) -> None:
    assert flops_per_token(Model.model_validate(model), 8192) == pytest.approx(expected, rel=1e-3)


def test_mfu_of_a_measured_8b_run() -> None:
    two = {"nodes": 1, "gpus_per_node": 2, "ranks_per_node": 2, "gpu": "h200-sxm"}
    assert mfu(run(LLAMA_8B, 4, two), 2 * 10_412) == pytest.approx(0.542, abs=0.001)


def test_a_cpu_has_no_mfu() -> None:
    cpu = {"nodes": 1, "gpus_per_node": 2, "ranks_per_node": 2, "gpu": "cpu"}
    assert mfu(run(LLAMA_8B, 4, {**cpu, "device": "cpu"}), 1e4) is None
    assert mfu(run(LLAMA_8B, 4, cpu), 1e4) is None


def test_the_usual_mfu_is_the_middle_steps_and_leaves_out_the_first_three() -> None:
    eight = run(LLAMA_8B, 64)
    assert usual_mfu(eight, [1.0, 1.0, 1.0, 5e5, 7e5, 6e5]) == mfu(eight, 6e5)
    assert usual_mfu(eight, [1.0, 1.0, 1.0]) is None


def test_the_state_of_70b_over_64_gpus_is_17_6_gb_a_rank() -> None:
    found = memory(run(LLAMA_70B, 128, recompute=True))
    assert found.parameters + found.gradients + found.optimizer == pytest.approx(16 * 70.5537e9 / 64, rel=1e-6)


def test_the_peak_of_a_measured_8b_step_is_met_within_5_percent() -> None:
    two = {"nodes": 1, "gpus_per_node": 2, "ranks_per_node": 2, "gpu": "h200-sxm"}
    found = memory(run(LLAMA_8B, 2, two))
    # torch.cuda.max_memory_allocated of this code on 2 H200, sequence 8192, bf16, no recompute.
    assert found.total - found.reserve == pytest.approx(98.118e9, rel=0.05)


def test_70b_fits_64_h100_with_recompute_alone() -> None:
    assert plan(run(LLAMA_70B, recompute=True)).fits
    assert not plan(run(LLAMA_70B)).fits


def test_70b_on_one_rail_of_200_gbit_is_bound_by_the_rail() -> None:
    thin = {"rails": 1, "rail_gbit_per_s": 200.0}
    found = plan(run(LLAMA_70B, shape=thin, recompute=True))
    # Two gathers in bf16 and a reduction in fp32, three quarters of them from other nodes, at 25 GB/s.
    assert found.communication_seconds == pytest.approx(70.5537e9 * 8 * 0.75 / 25e9, rel=1e-4)
    assert found.step_seconds == found.communication_seconds > found.compute_seconds


def test_more_micro_batches_mean_more_gathers() -> None:
    once, four = (communication_floor_seconds(run(LLAMA_70B, batch)) for batch in (64, 256))
    assert four == pytest.approx(4 * once)


def test_only_small_models_are_kept_whole() -> None:
    assert keeps_whole(run(LLAMA_1B))
    assert not keeps_whole(run(LLAMA_8B))


def test_whole_gradients_are_in_the_plan_where_they_are_kept() -> None:
    one, two = (memory(run(LLAMA_1B, batch)).gathered for batch in (64, 128))
    assert two - one == 4 * num_parameters(Model.model_validate(LLAMA_1B))


def test_hours_follow_from_steps_and_seconds() -> None:
    found = plan(run(LLAMA_8B))
    assert found.tokens_per_step == 64 * 8192
    assert found.hours == pytest.approx(1000 * found.step_seconds / 3600)
    assert found.tokens_per_s == pytest.approx(found.tokens_per_step / found.step_seconds)
