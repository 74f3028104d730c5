import pytest

from steelrail.train.names import to_hugging_face

PAIRS = {
    "embedding.weight": "model.embed_tokens.weight",
    "blocks.0.attention.query.weight": "model.layers.0.self_attn.q_proj.weight",
    "blocks.79.attention.output.weight": "model.layers.79.self_attn.o_proj.weight",
    "blocks.12.feed_forward.down.weight": "model.layers.12.mlp.down_proj.weight",
    "blocks.3.attention_norm.weight": "model.layers.3.input_layernorm.weight",
    "blocks.3.feed_forward_norm.weight": "model.layers.3.post_attention_layernorm.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}


@pytest.mark.parametrize(("ours", "theirs"), PAIRS.items())
def test_names_are_hugging_faces(ours: str, theirs: str) -> None:
    assert to_hugging_face(ours) == theirs


def test_a_name_that_is_not_ours_is_refused() -> None:
    with pytest.raises(KeyError):
        to_hugging_face("blocks.0.attention.query.bias")
