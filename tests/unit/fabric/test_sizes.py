import pytest

from steelrail.config.schema import Model
from steelrail.fabric.sizes import Message, block_params, busbw_gb_per_s, messages, root_params

LLAMA_70B = Model(dim=8192, num_layers=80, num_heads=64, num_kv_heads=8, ffn_dim=28672, vocab_size=128256)


def test_a_block_and_the_whole_of_llama_3_70b_have_the_published_sizes() -> None:
    assert round(block_params(LLAMA_70B) / 1e6, 2) == 855.65
    assert round((80 * block_params(LLAMA_70B) + root_params(LLAMA_70B)) / 1e9, 3) == 70.554


def test_tied_embeddings_count_once() -> None:
    tied = LLAMA_70B.model_copy(update={"tied_embeddings": True})
    assert root_params(LLAMA_70B) - root_params(tied) == 128256 * 8192


def test_messages_are_gathered_in_the_computes_precision_and_reduced_in_fp32() -> None:
    found = {(one.what, one.collective): one.dtype for one in messages(LLAMA_70B, "bf16", 64)}
    assert found[("block", "all_gather")] == "bf16"
    assert found[("block", "reduce_scatter")] == found[("small", "all_reduce")] == "fp32"


def test_a_bf16_block_is_1_711_gb_and_the_small_message_4_bytes() -> None:
    found = messages(LLAMA_70B, "bf16", 64)
    assert round(found[0].size_bytes / 1e9, 3) == 1.711
    assert found[-1] == Message("small", "all_reduce", "fp32", 1)


@pytest.mark.parametrize("world_size", [1, 3, 7, 64])
def test_messages_divide_evenly_over_any_number_of_ranks(world_size: int) -> None:
    sharded = messages(LLAMA_70B, "bf16", world_size, 1_000_000)[:-1]
    assert all(one.num_items % world_size == 0 for one in sharded)


def test_a_cap_bounds_every_message_to_one_item_a_rank() -> None:
    assert all(one.size_bytes <= 1_000_000 + 4 * 64 for one in messages(LLAMA_70B, "bf16", 64, 1_000_000))


@pytest.mark.parametrize(
    ("collective", "ranks", "expected"),
    [("all_gather", 4, 0.75), ("reduce_scatter", 4, 0.75), ("all_reduce", 4, 1.5), ("all_reduce", 1, 0.0)],
)
def test_busbw_follows_nccl_tests(collective: str, ranks: int, expected: float) -> None:
    assert busbw_gb_per_s(collective, 10**9, 1.0, ranks) == pytest.approx(expected)  # type: ignore[arg-type]
