import json

from steelrail.config.schema import Train
from steelrail.train.hugging_face import config_json, index_json, max_positions, weight_files

SHAPE = {"dim": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "ffn_dim": 48, "vocab_size": 50}
SCALING = {"factor": 8.0, "original_positions": 8192}


def train(**model: object) -> Train:
    fields = {"optimizer": {"learning_rate": 1e-3}, "steps": 1, "global_batch_sequences": 1, "sequence_tokens": 512}
    return Train.model_validate_json(json.dumps({**fields, "model": {**SHAPE, **model}}))


def test_config_names_shape_precision_and_end_of_text() -> None:
    config = config_json(train(), end_of_text_id=49)
    assert (config["hidden_size"], config["num_key_value_heads"], config["torch_dtype"]) == (32, 2, "bfloat16")
    assert (config["eos_token_id"], config["rope_scaling"]) == (49, None)
    assert "eos_token_id" not in config_json(train(), end_of_text_id=None)


def test_positions_reach_as_far_as_training_or_scaling_did() -> None:
    assert max_positions(train()) == 512
    assert max_positions(train(rope_scaling=SCALING)) == 65_536


def test_index_places_every_tensor_under_its_public_name() -> None:
    sizes = {"embedding.weight": 8, "norm.weight": 4}
    index = index_json(weight_files(sizes, max_bytes=8), sizes)
    assert index == {
        "metadata": {"total_size": 12},
        "weight_map": {
            "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
            "model.norm.weight": "model-00002-of-00002.safetensors",
        },
    }
