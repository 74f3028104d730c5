"""Names and whole shapes of a model's parameters, from its configuration alone: without torch and its memory. Pure."""

from __future__ import annotations

from steelrail.config.schema import Model


def parameter_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter by our name, in the order in which ``train.model.Llama`` has them."""
    table, block = (model.vocab_size, model.dim), _block_shapes(model)
    blocks = {f"blocks.{index}.{name}": shape for index in range(model.num_layers) for name, shape in block.items()}
    head = {} if model.tied_embeddings else {"head.weight": table}
    return {"embedding.weight": table, **blocks, "norm.weight": (model.dim,), **head}


def _block_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    kv_dim = model.num_kv_heads * model.head_dim
    return {
        "attention_norm.weight": (model.dim,),
        "attention.query.weight": (model.dim, model.dim),
        "attention.key.weight": (kv_dim, model.dim),
        "attention.value.weight": (kv_dim, model.dim),
        "attention.output.weight": (model.dim, model.dim),
        "feed_forward_norm.weight": (model.dim,),
        "feed_forward.gate.weight": (model.ffn_dim, model.dim),
        "feed_forward.up.weight": (model.ffn_dim, model.dim),
        "feed_forward.down.weight": (model.dim, model.ffn_dim),
    }
