import math

import pytest
import torch

from steelrail.config.schema import Model, RopeScaling
from steelrail.train.model import Llama, rope_frequencies, rope_tables, rotate, scaled_frequencies


def shape(**changes: object) -> Model:
    fields: dict[str, object] = {
        "dim": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "ffn_dim": 48, "vocab_size": 50
    }  # fmt: skip
    return Model.model_validate({**fields, **changes})


def filled(model: Llama) -> Llama:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    return model


def test_scaling_equals_that_of_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_theta": 500_000.0,
    }  # fmt: skip
    config = LlamaConfig(hidden_size=4096, num_attention_heads=32, rope_parameters=rope, max_position_embeddings=131072)
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    scaling = RopeScaling(factor=8.0, original_positions=8192)
    found = rope_frequencies(shape(dim=4096, num_heads=32, num_kv_heads=8, rope_scaling=scaling))
    torch.testing.assert_close(found, expected, atol=0.0, rtol=1e-6)


def test_scaling_keeps_short_waves_and_stretches_long_ones_by_the_factor() -> None:
    frequencies = 2 * math.pi / torch.tensor([100.0, 4000.0, 100_000.0])
    scaled = scaled_frequencies(frequencies, RopeScaling(factor=8.0, original_positions=8192))
    assert scaled[0] == frequencies[0]
    assert frequencies[1] / 8 < scaled[1] < frequencies[1]
    assert scaled[2] == frequencies[2] / 8


def test_rotation_keeps_the_product_of_a_pair_a_function_of_their_distance() -> None:
    cos, sin = rope_tables(shape(), 40, torch.device("cpu"))
    torch.manual_seed(0)
    query, key = torch.randn(8), torch.randn(8)

    def product(at_query: int, at_key: int) -> float:
        return float(rotate(query, cos[at_query], sin[at_query]) @ rotate(key, cos[at_key], sin[at_key]))

    assert product(5, 3) == pytest.approx(product(37, 35), abs=1e-5)
    assert product(5, 3) != pytest.approx(product(37, 30), abs=1e-2)


def test_a_later_token_never_changes_an_earlier_logit() -> None:
    model = filled(Llama(shape(), recompute=False))
    tokens = torch.arange(20).reshape(1, 20)
    changed = tokens.clone()
    changed[0, 15] = 49
    before, after = model.logits(tokens), model.logits(changed)
    torch.testing.assert_close(after[0, :15], before[0, :15])
    assert not torch.allclose(after[0, 15:], before[0, 15:])


def test_forward_is_the_summed_cross_entropy_of_the_logits() -> None:
    model = filled(Llama(shape(tied_embeddings=True), recompute=False))
    tokens = torch.arange(42).reshape(2, 21)
    logits = model.logits(tokens[:, :-1]).flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="sum")
    torch.testing.assert_close(model(tokens[:, :-1], tokens[:, 1:]), expected)


def test_a_tied_model_has_no_head_of_its_own() -> None:
    names = {name for name, _ in Llama(shape(tied_embeddings=True), recompute=False).named_parameters()}
    assert {name for name, _ in Llama(shape(), recompute=False).named_parameters()} - names == {"head.weight"}


def test_recompute_changes_no_gradient() -> None:
    tokens = torch.arange(42).reshape(2, 21)
    gradients = []
    for recompute in (False, True):
        model = filled(Llama(shape(), recompute))
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], atol=0.0, rtol=0.0)


def test_the_model_keeps_nothing_but_parameters_so_that_a_checkpoint_of_them_is_all_of_it() -> None:
    assert list(Llama(shape(rope_scaling=RopeScaling(factor=8.0)), recompute=True).buffers()) == []
