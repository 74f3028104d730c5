"""Run file to ``Run``: safe YAML of bounded size, strict types, and errors that name the nearest valid setting."""

from __future__ import annotations

import difflib
import json
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from steelrail.config.schema import Run
from steelrail.config.words import actual, expected, place_of, show, without_secret
from steelrail.config.yaml_files import parse_yaml, read_yaml_text
from steelrail.errors import ConfigError, must

MAX_VALUES = 100_000


def load_run(path: str | Path) -> Run:
    """Return the run described by a YAML file. Raises ``ConfigError`` with every fault, one a line."""
    return parse_run(read_yaml_text(Path(path), "run file"), str(path))


def parse_run(text: str, where: str) -> Run:
    """Return the run described by YAML ``text``; ``where`` names the text in messages."""
    data = parse_yaml(text, "run file", where)
    if not isinstance(data, dict):
        raise ConfigError(must("run file", "a mapping of settings", show(data), where, "start from config/demo.yaml"))
    _require_plain(data, where)
    try:
        # Through JSON, so that strict mode takes YAML's lists for tuples and nothing else is guessed.
        return Run.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(fault, where) for fault in _own(error))) from error
    except ValueError as error:  # a number of more digits than Python writes
        raise ConfigError(must("run file", "plain text and numbers", "not", where, "look for a huge number")) from error


def _require_plain(data: Any, where: str) -> None:
    """Raise ``ConfigError`` at a value that is neither text nor a number, and where aliases make too many values.

    A few aliases of YAML, each of many others, can stand for more than memory holds.
    """
    waiting, seen = [("", data)], 0
    while waiting:
        seen += 1
        if seen > MAX_VALUES:
            do = "write it without aliases (&, *)"
            raise ConfigError(must("run file", f"of at most {MAX_VALUES} values", "of more", where, do))
        place, one = waiting.pop()
        if isinstance(one, dict):
            _require_names(one, place, where)
            waiting.extend((f"{place}{key}.", value) for key, value in one.items())
        elif isinstance(one, list):
            waiting.extend((f"{place}{number}.", value) for number, value in enumerate(one))
        elif not isinstance(one, str | int | float | None):
            fault = "a date" if isinstance(one, date) else "of another kind"
            what = f"setting {place.rstrip('.')}"
            raise ConfigError(must(what, "plain text or a number", fault, where, "quote dates and the like"))


def _require_names(section: dict[Any, Any], place: str, where: str) -> None:
    for key in section:
        if not isinstance(key, str):
            what = f"name of setting {place}{key}"
            raise ConfigError(must(what, "text", f"{key} without quotes", where, "quote it, or correct it"))


def _own(error: ValidationError) -> list[Any]:
    """Return the faults, less those of the whole of a list whose item is at fault too: they are one fault."""
    faults: list[Any] = list(error.errors())
    inside = {fault["loc"][:end] for fault in faults for end in range(len(fault["loc"]))}
    return [fault for fault in faults if fault["type"] != "too_short" or fault["loc"] not in inside]


def _explain(fault: Any, where: str) -> str:
    place = place_of(fault)
    if fault["type"] == "extra_forbidden":
        near = _nearest(fault["loc"])
        hint = f"did you mean {near}? Else remove it" if near else "remove it"
        return must(f"setting {place}", expected(fault), actual(fault), where, hint)
    if fault["type"] == "missing":
        return must(f"setting {place}", expected(fault), actual(fault), where, "add it")
    if fault["type"] == "value_error":
        return f"{place or 'run file'} ({where}): {without_secret(str(fault['ctx']['error']))}"
    do = "correct it (config/README.md lists all settings)"
    return must(f"setting {place}" if place else "run file", expected(fault), actual(fault), where, do)


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
