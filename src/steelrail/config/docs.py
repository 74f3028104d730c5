"""The settings table (``config/README.md``) and the JSON schema (``config/schema.json``), made from the schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from steelrail.config.load import section_type
from steelrail.config.schema import Run

_HEAD = """# Settings

One whole YAML file per run; no inheritance, no command-line knobs. This table is made from
`src/steelrail/config/schema.py` by `python -m steelrail.config.docs`; a test holds them equal.

| setting | type | default | meaning |
| --- | --- | --- | --- |
"""


def settings_table() -> str:
    """Return ``config/README.md``."""
    return _HEAD + "".join(_rows(Run, ""))


def json_schema() -> str:
    """Return ``config/schema.json``, for editors."""
    return json.dumps(Run.model_json_schema(), indent=1, sort_keys=True) + "\n"


def _rows(section: type[BaseModel], prefix: str) -> list[str]:
    rows = []
    for name, field in section.model_fields.items():
        inner = section_type(field.annotation)
        default = _default(field.default)
        rows.append(
            f"| `{prefix}{name}` | {_type(field.annotation, field.metadata)} | {default} | {field.description} |\n"
        )
        if inner:
            rows += _rows(inner, f"{prefix}{name}.")
    return rows


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel):
        return "see below"
    return "none" if value is None else f"`{json.dumps(value)}`"


def _type(annotation: Any, metadata: list[Any]) -> str:
    inner = section_type(annotation)
    if inner:
        return "section"
    bounds = ", ".join(_bound(item) for item in metadata if _bound(item))
    return f"{_name(annotation)}{' (' + bounds + ')' if bounds else ''}"


def _name(annotation: Any) -> str:
    if hasattr(annotation, "__metadata__"):
        return _name(annotation.__origin__)
    arguments = getattr(annotation, "__args__", ())
    if not arguments:
        return str(getattr(annotation, "__name__", annotation))
    if all(isinstance(one, str) for one in arguments):
        return ", ".join(f"`{one}`" for one in arguments)
    names = [_name(one) for one in arguments if one not in (type(None), Ellipsis)]
    origin = getattr(annotation, "__origin__", None)
    if origin is tuple:
        return f"list of {names[0]}"
    return f"map of {names[0]} to {names[1]}" if origin is dict else " or ".join(names)


def _bound(item: Any) -> str:
    for sign, name in ((">=", "ge"), (">", "gt"), ("<=", "le"), ("<", "lt")):
        if getattr(item, name, None) is not None:
            return f"{sign} {getattr(item, name):g}"
    return ""


def write(folder: Path) -> None:
    """Write both files into ``folder``."""
    (folder / "README.md").write_text(settings_table())
    (folder / "schema.json").write_text(json_schema())


if __name__ == "__main__":
    write(Path("config"))
