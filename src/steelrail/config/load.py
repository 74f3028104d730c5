"""Run file to ``Run``: safe YAML of bounded size, strict types, and errors that name the nearest valid setting."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from steelrail.config.schema import Run
from steelrail.errors import ConfigError, must

MAX_BYTES = 1_000_000
MAX_VALUES = 100_000


def load_run(path: str | Path) -> Run:
    """Return the run described by a YAML file. Raises ``ConfigError`` with every fault, one a line."""
    return parse_run(_read(Path(path)), str(path))


def parse_run(text: str, where: str) -> Run:
    """Return the run described by YAML ``text``; ``where`` names the text in messages."""
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(
            must("run file", "valid YAML", f"not ({_one_line(error)})", where, "mend the line named")
        ) from error
    if not isinstance(data, dict):
        raise ConfigError(
            must("run file", "a mapping of settings", type(data).__name__, where, "start from config/demo.yaml")
        )
    _require_bounded(data, where)
    try:
        # Through JSON, so that strict mode takes YAML's lists for tuples and nothing else is guessed.
        return Run.model_validate_json(json.dumps(data))
    except (TypeError, ValueError) as error:
        if isinstance(error, ValidationError):
            raise ConfigError("\n".join(_explain(fault, where) for fault in error.errors())) from error
        raise ConfigError(
            must("run file", "plain text and numbers", _one_line(error), where, "quote dates and the like")
        ) from error


def _require_bounded(data: Any, where: str) -> None:
    """Raise ``ConfigError`` when a few aliases of YAML, each of many others, stand for more than memory holds."""
    waiting, seen = [data], 0
    while waiting:
        seen += 1
        if seen > MAX_VALUES:
            do = "write it without aliases (&, *)"
            raise ConfigError(must("run file", f"of at most {MAX_VALUES} values", "of more", where, do))
        one = waiting.pop()
        if isinstance(one, dict | list):
            waiting.extend(one.values() if isinstance(one, dict) else one)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)  # a device has no size, and no end
        if len(data) > MAX_BYTES:
            raise ConfigError(must("run file", f"at most {MAX_BYTES} bytes", "bigger", path, "check the path"))
        return data.decode("utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            must("run file", "a file", "missing", path, "name an existing run file, such as config/demo.yaml")
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            must("run file", "readable UTF-8", _one_line(error), path, "check its rights and encoding")
        ) from error


def _explain(fault: Any, where: str) -> str:
    place = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        near = _nearest(fault["loc"])
        hint = f"did you mean {near}? Else remove it" if near else "remove it"
        return must(f"setting {place}", "one that exists", "unknown", where, hint)
    if fault["type"] == "missing":
        return must(f"setting {place}", "given", "missing", where, "add it")
    if fault["type"] == "value_error":
        return f"{place or 'run file'} ({where}): {fault['ctx']['error']}"
    expected = fault["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    return must(
        f"setting {place}",
        expected,
        repr(fault["input"])[:80],
        where,
        "correct it (config/README.md lists all settings)",
    )


def _nearest(location: tuple[int | str, ...]) -> str | None:
    """Return the dotted path of the valid setting nearest to the misspelt one, here or in any section."""
    section: type[BaseModel] | None = Run
    for part in location[:-1]:
        section = _section_of(section, str(part)) if section else None
    here = list(section.model_fields) if section else []
    prefix = ".".join(str(part) for part in location[:-1])
    close = difflib.get_close_matches(str(location[-1]), here, n=1, cutoff=0.6)
    if close:
        return f"{prefix}.{close[0]}" if prefix else close[0]
    elsewhere = {path.rsplit(".", 1)[-1]: path for path in setting_paths(Run)}
    close = difflib.get_close_matches(str(location[-1]), list(elsewhere), n=1, cutoff=0.75)
    return elsewhere[close[0]] if close else None


def _section_of(section: type[BaseModel], name: str) -> type[BaseModel] | None:
    field = section.model_fields.get(name)
    return section_type(field.annotation) if field else None


def section_type(annotation: Any) -> type[BaseModel] | None:
    """Return the section class inside an annotation such as ``X``, ``X | None`` or ``tuple[X, ...]``, or none."""
    candidates = (annotation, *getattr(annotation, "__args__", ()))
    return next((one for one in candidates if isinstance(one, type) and issubclass(one, BaseModel)), None)


def setting_paths(section: type[BaseModel], prefix: str = "") -> list[str]:
    """Return the dotted path of every setting below ``section``, sections included."""
    paths = []
    for name, field in section.model_fields.items():
        paths.append(f"{prefix}{name}")
        inner = section_type(field.annotation)
        if inner:
            paths += setting_paths(inner, f"{prefix}{name}.")
    return paths


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
