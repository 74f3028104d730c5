"""The corpus stage: list the input once, read every footer and digest, write one manifest."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from steelrail.artifacts.corpus import CorpusManifest, CorpusObject, ListedObject, Listing, RowGroup
from steelrail.artifacts.files import results_folder, write_artifact
from steelrail.clients import clock
from steelrail.clients.disk import private_folder
from steelrail.clients.inputs import InputObject, Inputs
from steelrail.clients.progress import Meter, progress
from steelrail.clients.provenance import provenance
from steelrail.clients.store_requests import note_answered
from steelrail.config import keys
from steelrail.config.schema import Run
from steelrail.corpus import footer
from steelrail.corpus.listing import content_digest, make_listing
from steelrail.errors import InputError, must
from steelrail.log import logger
from steelrail.units import show_bytes

SUFFIX = ".parquet"
THREADS = 8
_log = logger(__name__)


def manifest_path(run: Run) -> Path:
    """Return where the corpus manifest of a run is."""
    return results_folder(run) / "corpus" / "manifest.json"


def list_corpus(run: Run) -> Listing:
    """Return every object that ``corpus.paths`` names, sorted. Raises ``InputError`` when there is none."""
    inputs = Inputs(run.store)
    found = [one for path in run.corpus.paths for one in inputs.find(path, SUFFIX)]
    objects = [ListedObject(uri=one.uri, size_bytes=one.size_bytes, tag=one.tag) for one in found]
    return make_listing(objects, run.corpus.paths, run.corpus.max_objects)


def run_stage(run: Run, listing: Listing) -> CorpusManifest:
    """Open every listed object, write ``corpus/manifest.json`` and return it. Raises ``InputError``."""
    started = clock.now()
    manifest = make_manifest(run, listing, read_objects(run, listing), started)
    private_folder(results_folder(run))
    note_answered(results_folder(run), "corpus", manifest.key)
    write_artifact(manifest_path(run), manifest)
    size = show_bytes(manifest.size_bytes)
    _log.info("corpus: %d objects, %d rows, %s", len(manifest.objects), manifest.num_rows, size)
    return manifest


def make_manifest(run: Run, listing: Listing, objects: tuple[CorpusObject, ...], started: float) -> CorpusManifest:
    """Return the manifest of the objects read. Raises ``InputError`` when they hold no row."""
    rows = sum(one.rows for one in objects)
    if rows == 0:
        where = ", ".join(run.corpus.paths)
        raise InputError(must("corpus", "at least one row", f"{len(objects)} files without rows", where, "add text"))
    key = keys.corpus_key(run, listing.digest)
    content = content_digest(objects, run.corpus.text_column)
    return CorpusManifest(
        run=run.name,
        key=key,
        text_column=run.corpus.text_column,
        objects=objects,
        num_rows=rows,
        size_bytes=sum(one.size_bytes for one in objects),
        content_digest=content,
        provenance=provenance("corpus", key, run, {"listing": listing.digest, "content": content}, started),
    )


def read_objects(run: Run, listing: Listing) -> tuple[CorpusObject, ...]:
    """Return footer and digest of every listed object, in the listing's order; several are read at once."""
    inputs, total = Inputs(run.store), sum(one.size_bytes for one in listing.objects)
    with progress("corpus", total) as meter, ThreadPoolExecutor(THREADS) as pool:
        try:
            return tuple(pool.map(partial(_read, inputs, run.corpus.text_column, meter), listing.objects))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _read(inputs: Inputs, column: str, meter: Meter, listed: ListedObject) -> CorpusObject:
    found = inputs.look(listed.uri)
    if (found.size_bytes, found.tag) != (listed.size_bytes, listed.tag):
        raise InputError(must("corpus file", "as it was listed", "changed since", listed.uri, "start again"))
    groups = _open(inputs, found, column)
    corpus_object = CorpusObject(
        uri=found.uri,
        size_bytes=found.size_bytes,
        tag=found.tag,
        digest=inputs.digest(found),
        rows=sum(group.rows for group in groups),
        row_groups=groups,
    )
    meter.add(found.size_bytes)
    return corpus_object


def _open(inputs: Inputs, found: InputObject, column: str) -> tuple[RowGroup, ...]:
    ends = (
        [inputs.read(found, start, 4) for start in (0, found.size_bytes - 4)] if found.size_bytes >= 4 else [b"", b""]
    )
    footer.check_magic(found.uri, found.size_bytes, ends[0], ends[1])
    file, _ = inputs.open(found)
    with file:
        try:
            parquet = pq.ParquetFile(file)
            schema, metadata = parquet.schema_arrow, parquet.metadata
        except (OSError, pa.ArrowException) as error:
            raise footer.damaged(found.uri, error) from error
    footer.check_column(found.uri, schema, column)
    return footer.row_groups(found.uri, metadata, column, found.size_bytes)
