"""One part: rows to documents to tokens to data shard files on NVMe, each uploaded as soon as it is whole."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from steelrail.artifacts.shards import DataShard, Split, TokenizerIdentity
from steelrail.clients.disk import node_root, on_disk, private_folder, require_writable_folder, sha256_file
from steelrail.clients.inputs import InputObject, Inputs
from steelrail.clients.process import memory_limited
from steelrail.clients.progress import Meter, progress
from steelrail.clients.store import Store
from steelrail.config.schema import Run
from steelrail.errors import InputError, must
from steelrail.shards.plan import Piece
from steelrail.shards.read import Source, document, read_rows
from steelrail.shards.split import choose_split
from steelrail.shards.tokenizer import Tokenizer, load_tokenizer
from steelrail.shards.write import Packed, Packer, Tokens, shard_name, write_packed


@dataclass(frozen=True)
class PartJob:
    """What one part is to do."""

    run: Run
    part: int
    key: str
    pieces: Sequence[Piece]
    text_column: str
    tokenizer: bytes


@dataclass(frozen=True)
class PartDone:
    """What one part made."""

    tokenizer: TokenizerIdentity
    data_shards: tuple[DataShard, ...]
    rows: int
    documents: int
    text_bytes: int
    dropped: dict[str, int]


@dataclass
class _Work:
    """State of a part under way."""

    store: Store
    job: PartJob
    folder: Path
    tokenizer: Tokenizer
    packers: dict[Split, Packer]
    data_shards: list[DataShard] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)


def shards_folder(run: Run) -> Path:
    """Return the folder of a run's data shards on a node's NVMe."""
    return node_root(run) / run.name / "shards"


def tokenise_part(store: Store, job: PartJob) -> PartDone:
    """Make the data shards of one part, on NVMe and in the store. Raises ``SteelrailError`` of the fitting kind."""
    work = _begin(store, job)
    with progress(f"shards part {job.part}", sum(piece.size_bytes for piece in job.pieces)) as meter:
        for piece in job.pieces:
            for rows in _rows(job, piece):
                _take(work, rows)
                _report(meter, work, rows)
    for split in work.packers:
        _flush(work, split)
    counts = (work.counts["rows"], work.counts["documents"], work.counts["text_bytes"])
    return PartDone(work.tokenizer.identity, tuple(work.data_shards), *counts, dict(sorted(work.dropped.items())))


def _begin(store: Store, job: PartJob) -> _Work:
    settings = job.run.shards
    require_writable_folder(Path(job.run.node.nvme), job.run.node.min_free_gb)
    # The library's threads obey this only when it is set before their first use.
    os.environ["RAYON_NUM_THREADS"] = str(settings.cpus)
    where = settings.tokenizer
    tokenizer = load_tokenizer(
        job.tokenizer, settings.tokenizer_format, settings.end_of_text, where, threads=settings.cpus
    )
    packers: dict[Split, Packer] = {"train": Packer(settings.shard_tokens), "heldout": Packer(settings.shard_tokens)}
    folder = private_folder(shards_folder(job.run))
    _remove_leftovers(folder, job.part)
    return _Work(store, job, folder, tokenizer, packers)


def _remove_leftovers(folder: Path, part: int) -> None:
    """Remove what a killed job of this part had begun to write here."""
    with on_disk(folder):
        for path in folder.glob(f".{shard_name(part, 0, 'train')[:10]}-*"):
            path.unlink(missing_ok=True)


def _rows(job: PartJob, piece: Piece) -> Iterator[list[bytes | None]]:
    """Yield the rows of a piece, its file proved to be the one that the corpus stage saw, before and after."""
    inputs = Inputs(job.run.store)
    found = _same(inputs, piece)
    file, buffer_bytes = inputs.open(found)
    with file:
        rows = read_rows(Source(file, buffer_bytes, found.uri), piece.groups, job.text_column)
        yield from _bounded(rows, job.run.shards.memory_mb * 2**20)
    _same(inputs, piece)


def _bounded(rows: Iterator[list[bytes | None]], size_bytes: int) -> Iterator[list[bytes | None]]:
    """Yield ``rows``, none of which may take more memory to read: a small file may be made to unpack into anything."""
    while True:
        # Not for what follows: a long document takes the tokenizer far more than its bytes, and its library aborts.
        with memory_limited(size_bytes):
            batch = next(rows, None)
        if batch is None:
            return
        yield batch


def _same(inputs: Inputs, piece: Piece) -> InputObject:
    """Return the piece's file as it is now. A file whose time alone changed is read whole to be told by its digest."""
    wanted = piece.corpus_object
    found = inputs.look(wanted.uri)
    if found.tag != wanted.tag and (found.size_bytes != wanted.size_bytes or inputs.digest(found) != wanted.digest):
        do = "rerun the corpus stage"
        raise InputError(must("corpus file", "as the corpus stage saw it", "changed since", wanted.uri, do))
    return found


def _take(work: _Work, rows: Sequence[bytes | None]) -> None:
    """Tokenise a few rows and pack their documents."""
    settings = work.job.run.shards
    sorted_rows = [document(row, settings.max_document_bytes) for row in rows]
    work.counts["rows"] += len(rows)
    work.dropped.update(reason for _, reason in sorted_rows if reason is not None)
    texts = [text for text, _ in sorted_rows if text is not None]
    for text, tokens in zip(texts, work.tokenizer.encode(texts), strict=True):
        if tokens is None:
            work.dropped["untokenizable"] += 1
        else:
            _pack(work, text.encode(), tokens)


def _pack(work: _Work, text: bytes, tokens: Tokens) -> None:
    split = choose_split(text, work.job.run.shards.heldout_per_million)
    packer = work.packers[split]
    if not packer.fits(len(tokens) + 1):
        _flush(work, split)
    packer.add(tokens, work.tokenizer.identity.end_of_text_id)
    work.counts.update(documents=1, text_bytes=len(text), tokens=len(tokens) + 1)


def _report(meter: Meter, work: _Work, rows: Sequence[bytes | None]) -> None:
    dropped = sum(work.dropped.values())
    note = f"{work.counts['tokens'] / 1e6:.2f} M tokens, {dropped} of {work.counts['rows']} rows dropped"
    meter.add(sum(len(row) for row in rows if row), note)


def _flush(work: _Work, split: Split) -> None:
    """Write what a packer holds to NVMe, upload it, and note it."""
    if not work.packers[split].num_tokens:
        return
    packed, job = work.packers[split].take(), work.job
    name = shard_name(job.part, len(work.data_shards), split)
    path = work.folder / name
    _write(path, packed)
    key = work.store.key(job.run.name, "shards", job.key, name)
    size = work.store.put_file(key, path)
    shard = DataShard(
        name=name,
        split=split,
        part=job.part,
        documents=len(packed.ends),
        tokens=len(packed.tokens),
        size_bytes=size,
        sha256=sha256_file(path),
        object_key=key,
    )
    work.data_shards.append(shard)


def _write(path: Path, packed: Packed) -> None:
    """Write a data shard file, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with on_disk(path):
            with pa.OSFile(str(temporary), mode="w") as sink:
                write_packed(sink, packed)
            _sync(temporary)
            temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
