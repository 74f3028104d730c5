"""All parts to one manifest, and whether too much was dropped on the way. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from steelrail.artifacts.files import Provenance
from steelrail.artifacts.shards import DataShard, PartManifest, ShardsManifest, Split
from steelrail.config.keys import digest
from steelrail.errors import InputError, must


def gather_parts(parts: Sequence[PartManifest], provenance: Provenance) -> ShardsManifest:
    """Return the manifest of a run's parts, given in order. All must be of one key and one tokenizer."""
    shards = tuple(shard for part in parts for shard in part.data_shards)
    jobs = (job for part in parts for job in (*part.earlier_job_ids, part.job_id) if job)
    return ShardsManifest(
        run=parts[0].run,
        key=parts[0].key,
        tokenizer=parts[0].tokenizer,
        data_shards=shards,
        rows=sum(part.rows for part in parts),
        documents=sum(part.documents for part in parts),
        text_bytes=sum(part.text_bytes for part in parts),
        train_tokens=count_tokens(shards, "train"),
        heldout_tokens=count_tokens(shards, "heldout"),
        dropped=add_up(part.dropped for part in parts),
        data_digest=data_digest(shards),
        job_ids=tuple(dict.fromkeys(jobs)),
        provenance=provenance,
    )


def data_digest(shards: Sequence[DataShard]) -> str:
    """Return the digest of the tokens and their order."""
    return digest([[shard.sha256, shard.tokens, shard.split] for shard in shards])


def count_tokens(shards: Sequence[DataShard], split: Split) -> int:
    """Return the tokens of one split."""
    return sum(shard.tokens for shard in shards if shard.split == split)


def add_up(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Return the sums by name, in the order of names."""
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(sorted(total.items()))


def check_parts(parts: Sequence[PartManifest], key: str, rows: Sequence[int], where: str) -> None:
    """Raise ``InputError`` unless every part was made under ``key`` and read all its rows."""
    for part, expected in zip(parts, rows, strict=True):
        if part.key != key:
            do = "rerun the shards stage"
            raise InputError(must(f"part {part.part}", f"of shards key {key}", part.key, where, do))
        if part.rows != expected:
            do = "remove it and rerun the shards stage"
            raise InputError(must(f"part {part.part}", f"made of {expected} rows", part.rows, where, do))


def check_dropped(manifest: ShardsManifest, max_share: float, where: str) -> None:
    """Raise ``InputError`` when too many rows were dropped, or no token is left to train on."""
    share = sum(manifest.dropped.values()) / max(1, manifest.rows)
    if share > max_share:
        reasons = ", ".join(f"{count} {reason}" for reason, count in manifest.dropped.items())
        actual = f"{share:.4f} ({reasons})"
        do = "clean the corpus, or raise shards.max_dropped_share"
        raise InputError(must("share of rows dropped", f"at most {max_share}", actual, where, do))
    if manifest.train_tokens == 0:
        do = "add text, or lower shards.heldout_per_million"
        raise InputError(must("training tokens", "at least 1", 0, where, do))
