"""The door to input objects: files by path, folder or glob, and objects of any bucket by ``s3://`` address."""

from __future__ import annotations

import glob
import hashlib
import io
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from steelrail.clients.store import Store
from steelrail.config import schema
from steelrail.errors import InputError, must

S3 = "s3://"
LOCAL_BUFFER_BYTES = 1 << 20
S3_BUFFER_BYTES = 8 << 20  # one GET each
_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class InputObject:
    """One input object as found. ``tag`` changes when the content may have: ETag on S3, size and mtime_ns on a disk."""

    uri: str
    size_bytes: int
    tag: str


class Inputs:
    """Finds and opens input objects. Safe to share between threads; one client per bucket."""

    def __init__(self, config: schema.Store) -> None:
        self._config = config
        self._stores: dict[str, Store] = {}
        self._lock = threading.Lock()

    def find(self, place: str, suffix: str) -> list[InputObject]:
        """Return the objects that ``place`` names: a file, a folder or prefix (every ``suffix`` below), or a glob."""
        if place.startswith(S3):
            return self._find_stored(place, suffix)
        return [local_object(path) for path in _find_local(place, suffix)]

    def look(self, uri: str) -> InputObject:
        """Return one object as it is now. Raises ``InputError`` when it is gone."""
        if not uri.startswith(S3):
            return local_object(Path(uri))
        bucket, key = split_s3(uri)
        found = self._store(bucket).head(key)
        if found is None:
            raise InputError(must("input object", "there", "missing", uri, "restore it, or rerun the corpus stage"))
        return InputObject(uri, found.size_bytes, found.etag)

    def digest(self, found: InputObject) -> str:
        """Return ``etag:...`` of an object on S3, ``sha256:...`` of a file (read in blocks)."""
        if found.uri.startswith(S3):
            return f"etag:{found.tag}"
        try:
            with Path(found.uri).open("rb") as file:
                return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        except OSError as error:
            raise unreadable(found.uri, error) from error

    def open(self, found: InputObject) -> tuple[pa.NativeFile, int]:
        """Return a random-access file for pyarrow, and the bytes to read at once."""
        if found.uri.startswith(S3):
            bucket, key = split_s3(found.uri)
            return pa.PythonFile(RangeFile(self._store(bucket), key, found.size_bytes), mode="r"), S3_BUFFER_BYTES
        try:
            return pa.OSFile(found.uri, mode="r"), LOCAL_BUFFER_BYTES
        except OSError as error:
            raise unreadable(found.uri, error) from error

    def read(self, found: InputObject, start: int, length: int) -> bytes:
        """Return ``length`` bytes from ``start``."""
        if found.uri.startswith(S3):
            bucket, key = split_s3(found.uri)
            return self._store(bucket).get_range(key, start, length)
        try:
            with Path(found.uri).open("rb") as file:
                file.seek(start)
                return file.read(length)
        except OSError as error:
            raise unreadable(found.uri, error) from error

    def _store(self, bucket: str) -> Store:
        with self._lock:
            if bucket not in self._stores:
                self._stores[bucket] = Store.open(self._config, bucket)
            return self._stores[bucket]

    def _find_stored(self, place: str, suffix: str) -> list[InputObject]:
        bucket, pattern = split_s3(place)
        wild = _WILD.search(pattern)
        prefix = pattern[: wild.start()] if wild else pattern
        wanted = glob_pattern(pattern) if wild else below_pattern(pattern, suffix)
        found = self._store(bucket).list(prefix)
        return [
            InputObject(f"{S3}{bucket}/{one.key}", one.size_bytes, one.etag)
            for one in found
            if wanted.fullmatch(one.key)
        ]


class RangeFile(io.RawIOBase):
    """A stored object as a file that can be read anywhere: each read is one ranged GET."""

    def __init__(self, store: Store, key: str, size_bytes: int) -> None:
        self._store, self._key, self._size, self._at = store, key, size_bytes, 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move, and return the new position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Return the next ``size`` bytes (all that are left when negative), fewer at the end."""
        left = max(0, self._size - self._at)
        length = left if size is None or size < 0 else min(size, left)
        data = self._store.get_range(self._key, self._at, length) if length else b""
        self._at += len(data)
        return data


def split_s3(uri: str) -> tuple[str, str]:
    """Return (bucket, key) of an ``s3://bucket/key`` address. Raises ``InputError``."""
    bucket, _, key = uri.removeprefix(S3).partition("/")
    if not bucket:
        raise InputError(must("corpus path", "s3://bucket/prefix", uri, "corpus.paths", "name a bucket"))
    return bucket, key


def below_pattern(prefix: str, suffix: str) -> re.Pattern[str]:
    """Return what matches the key ``prefix`` itself and every key ending in ``suffix`` below it as a folder."""
    folder = re.escape(prefix if not prefix or prefix.endswith("/") else f"{prefix}/")
    return re.compile(f"{folder}.*{re.escape(suffix)}" + (f"|{re.escape(prefix)}" if prefix else ""), re.DOTALL)


def glob_pattern(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a glob over keys: ``*`` and ``?`` stay inside one folder, ``**`` does not."""
    rules = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pieces = re.findall(r"\*\*/|\*\*|\*|\?|\[[^\]]+\]|.", pattern, re.DOTALL)
    return re.compile("".join(rules.get(piece) or _literal(piece) for piece in pieces), re.DOTALL)


def _literal(piece: str) -> str:
    if len(piece) < 3:
        return re.escape(piece)
    negated = piece[1] == "!"
    return f"[{'^' if negated else ''}{re.escape(piece[1 + negated : -1]).replace(chr(92) + '-', '-')}]"


def local_object(path: Path) -> InputObject:
    """Return a file as it is now. Raises ``InputError``."""
    try:
        state = path.stat()
    except OSError as error:
        raise unreadable(str(path), error) from error
    return InputObject(str(path), state.st_size, f"{state.st_size}-{state.st_mtime_ns}")


def unreadable(uri: str, error: OSError) -> InputError:
    """Return the error for a file that the system will not give."""
    why = error.strerror or type(error).__name__
    return InputError(must("input file", "readable", f"not ({why})", uri, "check the path and its rights"))


def _find_local(place: str, suffix: str) -> list[Path]:
    """Return absolute paths: jobs may start in another folder than the head."""
    path = Path(os.path.abspath(place))  # noqa: PTH100  (symbolic links stay: nodes share names, not inodes)
    if path.is_dir():
        return [one for one in path.rglob(f"*{suffix}") if one.is_file()]
    if path.exists() or not _WILD.search(place):
        return [path]
    return [one for one in map(Path, glob.glob(str(path), recursive=True)) if one.is_file()]  # noqa: PTH207
