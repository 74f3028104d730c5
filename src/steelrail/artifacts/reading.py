"""The one reading of files that a run left: whatever is not as a writer wrote it is one ``InputError``.

Bad UTF-8, bad JSON, a missing field, one of another type, a folder in the file's place: somebody damaged the file, and
no command guesses what stood there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from steelrail.config.words import why
from steelrail.errors import InputError, must

T = TypeVar("T")
PUT_BACK = "put the file back as it was written, or take the damaged lines out"


@contextmanager
def reading(what: str, where: object, do: str = PUT_BACK) -> Iterator[None]:
    """Turn what the system and the parsers say of a damaged file into ``InputError``; that it is missing, too."""
    try:
        yield
    except IsADirectoryError as error:
        raise folder_error(what, where) from error
    except OSError as error:
        raise InputError(must(what, "readable", f"not ({why(error)})", where, "check its rights and disk")) from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(must(what, "as it was written", f"damaged ({why(error)})", where, do)) from error


def folder_error(what: str, where: object) -> InputError:
    """Return the one error of a folder that lies where a file belongs."""
    return InputError(must(what, "a file", "a folder", where, "move it away, and run the same command again"))


def parsed(kind: type[T], data: bytes) -> T:
    """Return the record in JSON ``data``. Raises pydantic's ``ValidationError``: call it under ``reading``."""
    hashable: Any = kind
    record: T = _adapter(hashable).validate_json(data, strict=True)
    return record


@functools.cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def read_lines(path: Path, kind: type[T], what: str, do: str = PUT_BACK) -> list[T]:
    """Return the records of a file that ``append_line`` wrote, none when it is missing; torn lines are left out.

    Raises ``InputError`` at any other line that no writer wrote.
    """
    with reading(what, path, do):
        lines = path.read_bytes().split(b"\n") if path.exists() else []
    found = []
    for number, line in enumerate(lines, 1):
        if line.endswith(b"}") or not _begun(line):
            with reading(what, f"{path}, line {number}", do):
                found.append(parsed(kind, line))
    return found


def _begun(line: bytes) -> bool:
    """Return whether a writer that was killed, or whose host lost its power, can have left ``line``: a begin, or zeros.

    In files of ``append_line`` it need not be the last one: the next writer ends it and goes on.
    """
    return line.isascii() and line.lstrip(b"\0")[:1] in (b"{", b"")
