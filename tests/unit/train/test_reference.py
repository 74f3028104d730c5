"""The whole of training against an implementation that shares no code with ours: transformers and torch.optim."""

import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from steelrail.config.schema import Model
from steelrail.train.initial import fill_rows
from steelrail.train.model import Llama
from steelrail.train.names import to_hugging_face

SCALING = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def scenarios_module() -> Any:
    spec = importlib.util.spec_from_file_location("ranks", Path(__file__).with_name("ranks.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["ranks"] = module
    spec.loader.exec_module(module)
    return module


def reference_run() -> tuple[list[float], list[float], dict[str, torch.Tensor]]:
    """Losses, gradient norms and last weights of the scenario ``one``, trained with transformers on one process."""
    ranks = scenarios_module()
    run = ranks.run_of(1)
    config = LlamaConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=40,
        vocab_size=61, rms_norm_eps=1e-5, rope_theta=500_000.0, tie_word_embeddings=False, attention_dropout=0.0,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    theirs = dict(model.named_parameters())
    for name, parameter in Llama(run.train.model, recompute=False).named_parameters():
        with torch.no_grad():
            fill_rows(theirs[to_hugging_face(name)], name, tuple(parameter.shape), 0, 2, run.train.seed)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    rates = [0.005, 0.01] + [0.01 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * k / 4))) for k in (1, 2, 3, 4)]
    for step, rate in enumerate(rates):
        tokens = torch.from_numpy(ranks.corpus()[step * 8 : step * 8 + 8].astype("int64"))
        logits = model(tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        losses.append(loss.item())
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    return losses, norms, {name: parameter.detach() for name, parameter in theirs.items()}


def test_training_equals_transformers_and_torch_adamw(ran: dict[str, Any]) -> None:
    losses, norms, weights = reference_run()
    rows = ran["one"]["rows"]
    assert [row["loss"] for row in rows] == pytest.approx(losses, abs=1e-5)
    assert [row["grad_norm"] for row in rows] == pytest.approx(norms, rel=1e-4)
    exported = load_file(Path(ran["one"]["root"]) / "export" / "model.safetensors")
    assert exported.keys() == weights.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(exported[name], weight, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_logits_equal_those_of_transformers_with_llama_3_1_scaling(tied: bool) -> None:
    rope: dict[str, Any] = {**SCALING, "original_max_position_embeddings": 64, "rope_theta": 10_000.0}
    config = LlamaConfig(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2, intermediate_size=96,
        vocab_size=101, rope_parameters=rope, tie_word_embeddings=tied, rms_norm_eps=1e-5,
        max_position_embeddings=512,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = LlamaForCausalLM(config).eval()
    shape = Model.model_validate_json(
        json.dumps(
            {
                "dim": 64,
                "num_layers": 3,
                "num_heads": 8,
                "num_kv_heads": 2,
                "ffn_dim": 96,
                "vocab_size": 101,
                "rope_theta": 10_000.0,
                "rope_scaling": {"factor": 8.0, "original_positions": 64},
                "tied_embeddings": tied,
            }
        )
    )
    ours = Llama(shape, recompute=False)
    weights = dict(theirs.named_parameters())
    assert {to_hugging_face(name) for name, _ in ours.named_parameters()} == set(weights)
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.copy_(weights[to_hugging_face(name)])
        tokens = torch.randint(0, 101, (2, 300))
        torch.testing.assert_close(ours.logits(tokens), theirs(tokens).logits, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("name", "sequence"), [("one", 16), ("tied", 16), ("files", 40)])
def test_the_exported_folder_loads_in_transformers_with_our_logits(
    ran: dict[str, Any], name: str, sequence: int
) -> None:
    folder = Path(ran[name]["root"]) / "export"
    theirs = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ours = Llama(tied_shape() if name == "tied" else scenarios_module().run_of(1).train.model, recompute=False)
    weights = dict(theirs.named_parameters())
    with torch.no_grad():
        for ours_name, parameter in ours.named_parameters():
            parameter.copy_(weights[to_hugging_face(ours_name)])
        tokens = torch.arange(2 * sequence).reshape(2, sequence) % 61
        torch.testing.assert_close(ours.logits(tokens), theirs(tokens).logits, atol=2e-5, rtol=1e-4)


def tied_shape() -> Model:
    return Model.model_validate_json(
        '{"dim": 24, "num_layers": 2, "num_heads": 4, "num_kv_heads": 1, "ffn_dim": 40, "vocab_size": 61,'
        ' "rope_scaling": {"factor": 8.0, "original_positions": 8}, "tied_embeddings": true}'
    )
