"""Our parameter names and Hugging Face's for Llama, one to one. Pure."""

from __future__ import annotations

_WHOLE = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_IN_BLOCK = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.query.weight": "self_attn.q_proj.weight",
    "attention.key.weight": "self_attn.k_proj.weight",
    "attention.value.weight": "self_attn.v_proj.weight",
    "attention.output.weight": "self_attn.o_proj.weight",
    "feed_forward_norm.weight": "post_attention_layernorm.weight",
    "feed_forward.gate.weight": "mlp.gate_proj.weight",
    "feed_forward.up.weight": "mlp.up_proj.weight",
    "feed_forward.down.weight": "mlp.down_proj.weight",
}


def to_hugging_face(name: str) -> str:
    """Return Hugging Face's name of our parameter ``name``. Raises ``KeyError`` for a name that is not ours."""
    if not name.startswith("blocks."):
        return _WHOLE[name]
    _, index, rest = name.split(".", 2)
    return f"model.layers.{index}.{_IN_BLOCK[rest]}"
