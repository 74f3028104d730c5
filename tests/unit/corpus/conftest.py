"""A run over a temporary folder, and an S3 of moto."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from steelrail.config import schema


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An S3 client of moto with a bucket ``text`` for input and ``bucket`` for what we write."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="text")
        client.create_bucket(Bucket="bucket")
        yield client


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., schema.Run]:
    """Return a maker of runs; ``paths`` are the corpus, the rest are settings of ``corpus``."""

    def make(*paths: str | Path, **corpus: Any) -> schema.Run:
        model = schema.Model(dim=32, num_layers=1, num_heads=2, num_kv_heads=1, ffn_dim=64, vocab_size=8192)
        optimizer = schema.Optimizer(learning_rate=1e-3)
        return schema.Run(
            name="r",
            results=str(tmp_path / "results"),
            corpus=schema.Corpus(paths=tuple(map(str, paths)), **corpus),
            shards=schema.Shards(tokenizer="tokenizer.json"),
            shape=schema.Shape(nodes=1, gpus_per_node=0, ranks_per_node=1, device="cpu", gpu="cpu"),
            store=schema.Store(bucket="bucket", retry_seconds=0.0),
            train=schema.Train(model=model, optimizer=optimizer, steps=1, global_batch_sequences=1),
        )

    return make
