"""Cutting long documents without changing their tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tokenizers import Regex, Tokenizer, pre_tokenizers

from steelrail.shards.cut import KNOWN_PATTERNS, batches, may_cut, pieces

CONFIG = Path(__file__).parents[3] / "config" / "tokenizers"
ODD = [
    "\n",
    "\r\n",
    "\n\n",
    " ",
    "  ",
    "\t",
    "a",
    "été",
    "don't",
    "123",
    "1",
    "!?",
    "…",
    "\u0301",
    "\u3000",
    "\x1c",
    "\x85",
    "😀",
    "x\n",
    "\ny",
]


def with_rule(rule: pre_tokenizers.PreTokenizer) -> Tokenizer:
    """Return the demo's vocabulary under another splitting rule."""
    tokenizer = Tokenizer.from_file(str(CONFIG / "demo-8192.json"))
    tokenizer.pre_tokenizer = rule
    return tokenizer


def split_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


RULES = [*map(split_by, sorted(KNOWN_PATTERNS)), pre_tokenizers.ByteLevel(add_prefix_space=False)]


@pytest.mark.parametrize("rule", RULES)
def test_odd_texts_have_the_same_tokens_in_pieces_as_whole(rule: pre_tokenizers.PreTokenizer) -> None:
    tokenizer, chance, num_cuts = with_rule(rule), random.Random(1), 0
    assert may_cut(json.loads(tokenizer.to_str()))
    for _ in range(3000):
        text = "".join(chance.choices(ODD, k=40))
        parts = pieces(text, 5)
        num_cuts += len(parts) - 1
        assert "".join(parts) == text
        cut = [token for part in parts for token in tokenizer.encode(part).ids]
        assert cut == tokenizer.encode(text).ids, repr(text)
    assert num_cuts > 3000


def test_real_texts_have_the_same_tokens_in_pieces_as_whole(sample: Path) -> None:
    tokenizer = Tokenizer.from_file(str(CONFIG / "demo-8192.json"))
    texts = pq.read_table(sample, columns=["text"])["text"].to_pylist()[::12]
    cut = [[token for part in pieces(text, 200) for token in tokenizer.encode(part).ids] for text in texts]
    assert cut == [one.ids for one in tokenizer.encode_batch(texts)]


def changed(**changes: object) -> object:
    return {**json.loads((CONFIG / "demo-8192.json").read_text()), **changes}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True, "trim_offsets": True}


@pytest.mark.parametrize(
    "described",
    [
        changed(normalizer={"type": "NFC"}),
        changed(pre_tokenizer=None),
        changed(pre_tokenizer={"type": "Whitespace"}),
        changed(pre_tokenizer={**BYTES, "add_prefix_space": True}),
        changed(pre_tokenizer={**BYTES, "use_regex": False}),
        changed(added_tokens=[{"id": 9, "content": "a\nb", "special": False}]),
        changed(model={"type": "Unigram"}),
    ],
)
def test_tokenizers_not_known_to_be_safe_are_never_cut(described: object) -> None:
    assert not may_cut(described)


def test_a_text_without_a_safe_place_stays_whole() -> None:
    assert pieces("x" * 1000 + "\n\n" + "y" * 1000, 10) == ["x" * 1000 + "\n\n" + "y" * 1000]


def test_pieces_are_about_as_long_as_asked() -> None:
    parts = pieces("0123456\n" * 1000, 100)
    assert max(map(len, parts)) <= 108
    assert len(parts) > 70


def test_batches_hold_at_most_so_many_characters_and_everything_in_order() -> None:
    texts = ["a" * size for size in (5, 5, 1, 30, 2, 9)]
    found = list(batches(texts, 10))
    assert [text for batch in found for text in batch] == texts
    assert [sum(map(len, batch)) for batch in found] == [10, 1, 30, 2, 9]
