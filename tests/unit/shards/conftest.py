"""A run over a temporary folder with a small tokenizer, and a store of moto."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from steelrail.clients.store import Store
from steelrail.config import schema

ROOT = Path(__file__).parents[3]
TOKENIZER = ROOT / "config" / "tokenizers" / "demo-8192.json"


@pytest.fixture
def sample() -> Path:
    """The sample corpus."""
    return ROOT / "data" / "sample.parquet"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An S3 client of moto with a bucket ``text`` for input and ``bucket`` for what we write."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    # One client per bucket and test: making one costs more than all that a test asks of it.
    monkeypatch.setattr(
        Store, "open", functools.cache(lambda config, bucket=None: Store(config, bucket or config.bucket))
    )
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="text")
        client.create_bucket(Bucket="bucket")
        yield client


@pytest.fixture
def store(s3: Any) -> Store:
    """The store that runs of ``make_run`` use."""
    return Store.open(schema.Store(bucket="bucket", retry_seconds=0.0))


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., schema.Run]:
    """Return a maker of runs; ``paths`` are the corpus, the rest are settings of ``shards``."""
    (tmp_path / "nvme").mkdir()

    def make(*paths: str | Path, **shards: Any) -> schema.Run:
        model = schema.Model(dim=32, num_layers=1, num_heads=2, num_kv_heads=1, ffn_dim=64, vocab_size=8192)
        optimizer = schema.Optimizer(learning_rate=1e-3)
        return schema.Run(
            name="r",
            results=str(tmp_path / "results"),
            corpus=schema.Corpus(paths=tuple(map(str, paths))),
            shards=schema.Shards(**{"tokenizer": str(TOKENIZER), "parts": 2, **shards}),
            shape=schema.Shape(nodes=1, gpus_per_node=0, ranks_per_node=1, device="cpu", gpu="cpu"),
            node=schema.Node(nvme=str(tmp_path / "nvme"), min_free_gb=0.0),
            store=schema.Store(bucket="bucket", retry_seconds=0.0),
            train=schema.Train(model=model, optimizer=optimizer, steps=1, global_batch_sequences=1),
        )

    return make
