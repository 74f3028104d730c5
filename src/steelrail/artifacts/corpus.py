"""What exactly the input is: every Parquet object, its identity and its row groups."""

from __future__ import annotations

from typing import ClassVar

from steelrail.artifacts.files import Artifact, Provenance


class ListedObject(Artifact):
    """One object as listed, before it is opened. ``tag`` changes when the content may have (ETag, or size and time)."""

    uri: str
    size_bytes: int
    tag: str


class Listing(Artifact):
    """The corpus as listed once on the head node. Sorted by ``uri``."""

    CALLED: ClassVar[str] = "listing of the corpus"
    COMMAND: ClassVar[str] = "steelrail corpus"

    objects: tuple[ListedObject, ...]
    digest: str


class RowGroup(Artifact):
    """One Parquet row group: the smallest thing that is read. ``size_bytes`` is its text column, uncompressed."""

    rows: int
    size_bytes: int


class CorpusObject(Artifact):
    """One Parquet object. ``digest`` is ``etag:...`` on S3 and ``sha256:...`` on a file system; ``tag`` as listed."""

    uri: str
    size_bytes: int
    tag: str = ""
    digest: str
    rows: int
    row_groups: tuple[RowGroup, ...]


class CorpusManifest(Artifact):
    """``results/<run>/corpus/manifest.json``."""

    CALLED: ClassVar[str] = "corpus manifest"
    COMMAND: ClassVar[str] = "steelrail corpus"

    version: int = 1
    run: str
    key: str
    text_column: str
    objects: tuple[CorpusObject, ...]
    num_rows: int
    size_bytes: int
    content_digest: str
    provenance: Provenance
