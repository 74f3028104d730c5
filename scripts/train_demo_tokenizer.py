"""Train the demo's tokenizer: a byte-level BPE of 8,192 tokens on the sample corpus. The same bytes every time.

usage: python scripts/train_demo_tokenizer.py [SAMPLE.parquet] [OUT.json]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "data" / "sample.parquet"
OUT = ROOT / "config" / "tokenizers" / "demo-8192.json"
VOCAB_SIZE = 8192
END_OF_TEXT = "<|end_of_text|>"
# Llama-3's splitting rule, so that the demo's tokens look like the real ones.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def texts(sample: Path) -> Iterator[str]:
    """Yield the sample's documents in order."""
    for batch in pq.ParquetFile(sample).iter_batches(256, columns=["text"]):
        yield from batch.column(0).to_pylist()


def train(sample: Path) -> str:
    """Return the tokenizer as JSON."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(sample), trainer)
    return tokenizer.to_str(pretty=True) + "\n"


def main() -> None:
    """Write the tokenizer file."""
    paths = [Path(word) for word in sys.argv[1:3]]
    sample, out = (paths + [SAMPLE, OUT][len(paths) :])[:2]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(train(sample), encoding="utf-8")
    print(f"{out}: {VOCAB_SIZE} tokens, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
