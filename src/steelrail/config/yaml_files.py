"""The one reading of YAML: a regular file of bounded size, in UTF-8, safe types, and no key given twice."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import yaml

from steelrail.config.words import why
from steelrail.errors import ConfigError, must

MAX_BYTES = 1_000_000
# The same safe loader in C where it was built: a whole price book in a tenth of the time.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# What PyYAML's constructors raise at a value that is not of its tag (``2026-13-40``, ``!!bool x``, ``!!int ''``).
_BAD_VALUE = (ValueError, ArithmeticError, LookupError, TypeError, AttributeError)


def read_yaml_text(path: Path, what: str) -> str:
    """Return the text of a YAML file. Raises ``ConfigError`` unless it is a regular file of UTF-8 within a megabyte."""
    try:
        # Asked before it is opened: a pipe would keep us waiting, and a device has no end.
        if not stat.S_ISREG(path.stat().st_mode):
            fault = "a folder" if path.is_dir() else "a pipe or device"
            raise ConfigError(must(what, "a regular file", fault, path, "check the path"))
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigError(must(what, f"at most {MAX_BYTES} bytes", "bigger", path, "check the path"))
        return data.decode("utf-8")
    except FileNotFoundError as error:
        do = "name an existing one, such as config/demo.yaml"
        raise ConfigError(must(what, "a file", "missing", path, do)) from error
    except (OSError, ValueError) as error:
        do = "check its path, rights and encoding"
        raise ConfigError(must(what, "readable UTF-8", f"not ({why(error)})", path, do)) from error


def parse_yaml(text: str, what: str, where: object) -> Any:
    """Return the one document in ``text``. Raises ``ConfigError``: no YAML, or a key twice in one mapping."""
    try:
        loader = _LOADER(text)
        try:
            node = loader.get_single_node()
            _require_once(node, what, where)
            return None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except (yaml.YAMLError, RecursionError, *_BAD_VALUE) as error:
        raise ConfigError(must(what, "valid YAML", f"not ({why(error)})", where, "mend it")) from error


def _require_once(root: yaml.Node | None, what: str, where: object) -> None:
    """Raise ``ConfigError`` at a key that stands twice in one mapping: YAML forbids it, PyYAML takes the last."""
    waiting, seen = [("", root)], set[int]()
    while waiting:
        place, node = waiting.pop()
        if id(node) in seen:  # an alias
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += [(f"{place}{number}.", one) for number, one in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            _require_keys_once(place, node, what, where)
            waiting += [(f"{place}{key.value}.", one) for key, one in node.value]


def _require_keys_once(place: str, node: yaml.MappingNode, what: str, where: object) -> None:
    first: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        line, name = key.start_mark.line + 1, (key.tag, str(key.value))
        if name in first:
            fault = f"given on lines {first[name]} and {line}"
            raise ConfigError(must(f"{what}'s {place}{key.value}", "given once", fault, where, "remove one of them"))
        first[name] = line
