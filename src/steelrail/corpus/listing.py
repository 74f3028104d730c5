"""The listing: which objects the corpus is made of, in one order, with one digest. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from steelrail.artifacts.corpus import CorpusObject, ListedObject, Listing
from steelrail.config.keys import digest
from steelrail.errors import InputError, must


def make_listing(found: Iterable[ListedObject], paths: tuple[str, ...], max_objects: int) -> Listing:
    """Return the objects sorted by ``uri``, each once. Raises ``InputError`` when there are none or too many."""
    objects = tuple(sorted({one.uri: one for one in found}.values(), key=lambda one: one.uri))
    where = ", ".join(paths)
    if not objects:
        raise InputError(must("corpus", "at least one Parquet file", "empty", where, "correct corpus.paths"))
    if len(objects) > max_objects:
        do = "narrow corpus.paths, or raise corpus.max_objects"
        raise InputError(must("corpus", f"at most {max_objects} objects", len(objects), where, do))
    return Listing(objects=objects, digest=listing_digest(objects))


def listing_digest(objects: Iterable[ListedObject]) -> str:
    """Return a digest that changes when any object may have changed."""
    return digest([[one.uri, one.size_bytes, one.tag] for one in objects])


def content_digest(objects: Iterable[CorpusObject], text_column: str) -> str:
    """Return a digest of what is read, in order: it does not depend on where the objects lie."""
    rows = [[one.digest, [[group.rows, group.size_bytes] for group in one.row_groups]] for one in objects]
    return digest({"text_column": text_column, "objects": rows})
