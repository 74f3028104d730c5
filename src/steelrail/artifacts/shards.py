"""Tokens, packed and ready to map: what each data shard file is, and what was dropped on the way."""

from __future__ import annotations

from typing import ClassVar, Literal

from steelrail.artifacts.files import Artifact, Provenance

Split = Literal["train", "heldout"]


class TokenizerIdentity(Artifact):
    """Which tokenizer made the tokens. ``digest`` is the SHA-256 of its file."""

    digest: str
    format: str
    vocab_size: int
    end_of_text_id: int


class DataShard(Artifact):
    """One Arrow IPC file: a row per document, column ``tokens: large_list<uint32>``, one record batch.

    ``tokens`` counts the end-of-text token of each document. ``object_key`` is its key in the store.
    """

    name: str
    split: Split
    part: int
    documents: int
    tokens: int
    size_bytes: int
    sha256: str
    object_key: str


class PartManifest(Artifact):
    """``results/<run>/shards/parts/NN.json``: what one Slurm job of the shards stage made.

    The same file lies in the store beside the data shards, written after them: it says that they are all there.
    ``job_id`` wrote this file; ``earlier_job_ids`` did the work that it found done.
    """

    CALLED: ClassVar[str] = "manifest of a part"
    COMMAND: ClassVar[str] = "steelrail shards part"

    version: int = 1
    run: str
    key: str
    part: int
    tokenizer: TokenizerIdentity
    data_shards: tuple[DataShard, ...]
    rows: int
    documents: int
    text_bytes: int
    dropped: dict[str, int]
    seconds: float
    job_id: str | None
    earlier_job_ids: tuple[str, ...] = ()
    provenance: Provenance


class ShardsManifest(Artifact):
    """``results/<run>/shards/manifest.json``. ``data_digest`` names tokens and order: it is in the training key."""

    CALLED: ClassVar[str] = "manifest of data shards"
    COMMAND: ClassVar[str] = "steelrail shards gather"

    version: int = 1
    run: str
    key: str
    tokenizer: TokenizerIdentity
    data_shards: tuple[DataShard, ...]
    rows: int
    documents: int
    text_bytes: int
    train_tokens: int
    heldout_tokens: int
    dropped: dict[str, int]
    data_digest: str
    job_ids: tuple[str, ...]
    provenance: Provenance
