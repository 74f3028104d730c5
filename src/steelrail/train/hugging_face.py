"""Hugging Face's side of a Llama: config.json, shard files and their index. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from steelrail.config.schema import Model, Train
from steelrail.train.names import to_hugging_face

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True)
class WeightFile:
    """One safetensors file: our names of the parameters in it, in order."""

    name: str
    parameters: tuple[str, ...]


def config_json(train: Train, end_of_text_id: int | None) -> dict[str, Any]:
    """Return config.json of a ``LlamaForCausalLM``."""
    model = train.model
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": model.dim,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.ffn_dim,
        "vocab_size": model.vocab_size,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "rope_scaling": _rope_scaling(model),
        "max_position_embeddings": max_positions(train),
        "tie_word_embeddings": model.tied_embeddings,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16" if train.precision == "bf16" else "float32",
        "use_cache": True,
    }
    return config if end_of_text_id is None else {**config, "bos_token_id": None, "eos_token_id": end_of_text_id}


def max_positions(train: Train) -> int:
    """Return how far the weights reach: the trained length, or the original one as stretched by RoPE's scaling."""
    scaling = train.model.rope_scaling
    stretched = 0 if scaling is None else round(scaling.factor * scaling.original_positions)
    return max(train.sequence_tokens, stretched)


def weight_files(sizes: dict[str, int], max_bytes: int) -> tuple[WeightFile, ...]:
    """Split parameters (our names to bytes, in order) into files of at most ``max_bytes`` each."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if groups[-1] and filled + size > max_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    if len(groups) == 1:
        return (WeightFile(SINGLE, tuple(groups[0])),)
    return tuple(
        WeightFile(f"model-{number:05d}-of-{len(groups):05d}.safetensors", tuple(group))
        for number, group in enumerate(groups, start=1)
    )


def index_json(files: tuple[WeightFile, ...], sizes: dict[str, int]) -> dict[str, Any]:
    """Return model.safetensors.index.json."""
    places = {to_hugging_face(name): file.name for file in files for name in file.parameters}
    return {"metadata": {"total_size": sum(sizes.values())}, "weight_map": places}


def _rope_scaling(model: Model) -> dict[str, Any] | None:
    scaling = model.rope_scaling
    if scaling is None:
        return None
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_frequency_factor,
        "high_freq_factor": scaling.high_frequency_factor,
        "original_max_position_embeddings": scaling.original_positions,
    }
