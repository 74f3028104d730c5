"""The shards stage: one part of the corpus to data shards on NVMe and in the store, and all parts to one manifest."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from steelrail.artifacts.corpus import CorpusManifest
from steelrail.artifacts.files import read_artifact, results_folder, write_artifact
from steelrail.artifacts.jobs import NotedJob, note_job
from steelrail.artifacts.shards import PartManifest, ShardsManifest
from steelrail.clients import clock
from steelrail.clients.provenance import provenance
from steelrail.clients.store import MissingObjectError, Store
from steelrail.clients.store_requests import note_answered
from steelrail.config import keys
from steelrail.config.schema import Run
from steelrail.errors import ConfigError, InputError, must
from steelrail.log import logger
from steelrail.shards.gathering import check_dropped, check_parts, gather_parts
from steelrail.shards.part import PartJob, tokenise_part
from steelrail.shards.plan import Piece, plan_parts
from steelrail.shards.tokenizer import digest_of
from steelrail.units import show_bytes, show_seconds

_log = logger(__name__)


def manifest_path(run: Run) -> Path:
    """Return where the shards manifest of a run is."""
    return results_folder(run) / "shards" / "manifest.json"


def part_path(run: Run, part: int) -> Path:
    """Return where the manifest of one part is."""
    return results_folder(run) / "shards" / "parts" / f"{part:02d}.json"


def part_key(store: Store, run: Run, key: str, part: int) -> str:
    """Return the store's key of the object that says that a part is whole."""
    return store.key(run.name, "shards", key, f"part-{part:05d}.json")


def tokenizer_digest(path: str | Path) -> str:
    """Return the identity of a tokenizer file: the SHA-256 of its bytes. Raises ``InputError``."""
    return digest_of(read_tokenizer(path))


def read_tokenizer(path: str | Path) -> bytes:
    """Return a tokenizer file's bytes. Raises ``InputError``."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise InputError(
            must("tokenizer file", "readable", f"not ({why})", path, "correct shards.tokenizer")
        ) from error


def combined_key(run: Run, corpus: CorpusManifest, tokenizer: str) -> str:
    """Return the key of the data shards: settings, tokenizer and the corpus' content, wherever that lies."""
    view = {"shards": keys.shards_key(run, tokenizer), "content": corpus.content_digest}
    return keys.digest(view)[: keys.KEY_LENGTH]


def make_part(run: Run, part: int) -> PartManifest:
    """Make one part (0-based) and return its manifest, written last. What the store already holds is not made again.

    Raises ``ConfigError`` (no such part), ``InputError``, ``NodeError`` or ``StoreError``.
    """
    plan = _plan(run)
    if not 0 <= part < run.shards.parts:
        do = "name one of the run file's parts"
        raise ConfigError(must("part", f"from 0 to {run.shards.parts - 1}", part, "--part", do))
    if job_id := _job_id():
        note_job(results_folder(run), NotedJob("shards", plan.key, job_id))
    try:
        store = Store.open(run.store)
        found = _find_part(store, run, plan, part)
        manifest = _adopted(found, _job_id()) if found else _make(store, run, plan, part)
    finally:
        note_answered(results_folder(run), "shards", plan.key)
    write_artifact(part_path(run, part), manifest)
    return manifest


def run_part(run: Run, part: int) -> PartManifest:
    """Do ``make_part`` in a process of its own, as files are foreign: what may be read at once counts in full."""
    # Arrow's own allocator takes a GiB ahead, whatever is read.
    pa.set_memory_pool(pa.system_memory_pool())
    return make_part(run, part)


def gather(run: Run) -> ShardsManifest:
    """Gather all parts into ``shards/manifest.json`` and return it. Raises ``InputError``."""
    started = clock.now()
    plan = _plan(run)
    parts = [read_artifact(part_path(run, part), PartManifest) for part in range(run.shards.parts)]
    where = str(part_path(run, 0).parent)
    check_parts(parts, plan.key, [sum(piece.rows for piece in pieces) for pieces in plan.pieces], where)
    inputs = {"corpus": plan.corpus.content_digest, "tokenizer": plan.tokenizer_digest}
    manifest = gather_parts(parts, provenance("shards", plan.key, run, inputs, started))
    check_dropped(manifest, run.shards.max_dropped_share, ", ".join(run.corpus.paths))
    write_artifact(manifest_path(run), manifest)
    counts = f"{manifest.documents} documents, {manifest.train_tokens} training and {manifest.heldout_tokens} held-out"
    _log.info("shards: %s tokens in %d data shards", counts, len(manifest.data_shards))
    return manifest


@dataclass(frozen=True)
class _Plan:
    corpus: CorpusManifest
    tokenizer: bytes
    tokenizer_digest: str
    key: str
    pieces: Sequence[Sequence[Piece]]


def _plan(run: Run) -> _Plan:
    corpus = read_artifact(results_folder(run) / "corpus" / "manifest.json", CorpusManifest)
    tokenizer = read_tokenizer(run.shards.tokenizer)
    identity = digest_of(tokenizer)
    key = combined_key(run, corpus, identity)
    return _Plan(corpus, tokenizer, identity, key, plan_parts(corpus.objects, run.shards.parts))


def _make(store: Store, run: Run, plan: _Plan, part: int) -> PartManifest:
    started = clock.now()
    job = PartJob(run, part, plan.key, plan.pieces[part], plan.corpus.text_column, plan.tokenizer)
    made = tokenise_part(store, job)
    inputs = {"corpus": plan.corpus.content_digest, "tokenizer": plan.tokenizer_digest}
    seconds = clock.now() - started
    manifest = PartManifest(
        run=run.name,
        key=plan.key,
        part=part,
        tokenizer=made.tokenizer,
        data_shards=made.data_shards,
        rows=made.rows,
        documents=made.documents,
        text_bytes=made.text_bytes,
        dropped=made.dropped,
        seconds=seconds,
        job_id=_job_id(),
        provenance=provenance("shards", plan.key, run, inputs, started),
    )
    store.put(part_key(store, run, plan.key, part), manifest.model_dump_json(indent=1).encode())
    pace = f"{show_bytes(made.text_bytes)} in {show_seconds(seconds)}"
    _log.info("shards: part %d made, %s, %d data shards in the store", part, pace, len(made.data_shards))
    return manifest


def _find_part(store: Store, run: Run, plan: _Plan, part: int) -> PartManifest | None:
    """Return the part as the store holds it, or none unless its manifest and every one of its data shards are there."""
    try:
        found = PartManifest.model_validate_json(store.get(part_key(store, run, plan.key, part)))
    except (MissingObjectError, ValueError):
        return None
    same = (found.run, found.key, found.part) == (run.name, plan.key, part)
    if same and all(_is_stored(store, shard.object_key, shard.size_bytes) for shard in found.data_shards):
        _log.info("shards: part %d found in the store, %d data shards", part, len(found.data_shards))
        return found
    return None


def _is_stored(store: Store, key: str, size_bytes: int) -> bool:
    head = store.head(key)
    return head is not None and head.size_bytes == size_bytes


def _adopted(found: PartManifest, job_id: str | None) -> PartManifest:
    """Return a part found done, with the jobs that made it kept: they are on the bill."""
    earlier = [job for job in (*found.earlier_job_ids, found.job_id) if job and job != job_id]
    return found.model_copy(update={"job_id": job_id, "earlier_job_ids": tuple(dict.fromkeys(earlier))})


def _job_id() -> str | None:
    return os.environ.get("SLURM_JOB_ID")
