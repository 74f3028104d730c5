"""The demo's tokenizer is what its script makes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "config" / "tokenizers" / "demo-8192.json"


def test_the_script_reproduces_the_committed_tokenizer(sample: Path) -> None:
    spec = importlib.util.spec_from_file_location("script", ROOT / "scripts" / "train_demo_tokenizer.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.train(sample) == DEMO.read_text(encoding="utf-8")


def test_it_has_8192_tokens_with_every_byte_and_one_control_token() -> None:
    described = json.loads(DEMO.read_text(encoding="utf-8"))
    vocabulary = described["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(8192))
    assert sum(len(token) == 1 for token in vocabulary) == 256
    assert [(token["content"], token["id"]) for token in described["added_tokens"]] == [("<|end_of_text|>", 0)]
