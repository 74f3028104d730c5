"""What pydantic, YAML and Python say of a value, in our own words: what it must be, and what it is. Pure.

No value that can carry a secret is shown: neither what stands before the ``@`` of a URL nor behind its ``?``, nor what
is given to a name that sounds like a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from steelrail.config.schema import SECRET_NAME

SHOWN = 80
_SUBJECT = re.compile(r"^\w+ should (be |have |match |)(a valid |an |a )?")
_ASSIGNED = re.compile(
    r"(\w*(?:SECRET|PASSWORD|PASSWD|TOKEN|API_KEY|ACCESS_KEY_ID|ACCESS_KEY)[\"']?\s*[=:]\s*)\S+", re.I
)
_FORMS = {
    "string_pattern_mismatch": "text of the form {pattern}",
    "string_too_short": "text of {min_length} or more characters",
    "string_too_long": "text of at most {max_length} characters",
    "too_short": "a list of {min_length} or more",
    "too_long": "a list of at most {max_length}",
    "greater_than_equal": "at least {ge}",
    "greater_than": "above {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "below {lt}",
    "json_invalid": "JSON",
    "string_type": "text",
    "string_unicode": "text in UTF-8",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dataclass_type": "a mapping",
    "missing": "given",
    "extra_forbidden": "one that exists",
}


def place_of(fault: Mapping[str, Any]) -> str:
    """Return the dotted place of one of pydantic's faults; empty for the whole."""
    return ".".join(str(part) for part in fault["loc"])


def expected(fault: Mapping[str, Any]) -> str:
    """Return what a value must be, by one of pydantic's faults: what follows *must be*."""
    form = _FORMS.get(fault["type"])
    return form.format(**fault.get("ctx", {})) if form else _SUBJECT.sub("", fault["msg"])


def actual(fault: Mapping[str, Any]) -> str:
    """Return what the value is, by one of pydantic's faults: what follows *is*."""
    if fault["type"] in ("missing", "extra_forbidden"):
        return "missing" if fault["type"] == "missing" else "unknown"
    if fault["type"] == "json_invalid":
        return f"not ({fault['ctx']['error']})"
    if any(SECRET_NAME.search(str(part).upper()) for part in fault["loc"]):
        return "another (not shown: it may be a secret)"
    return show(fault["input"])


def show(value: object) -> str:
    """Return a value as a message may show it: short, in YAML's words, without what can be a secret."""
    if isinstance(value, str):
        return repr(without_secret(value))[:SHOWN]
    if isinstance(value, bytes):
        return "bytes"
    if isinstance(value, Mapping):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    words = {None: "empty", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)[:SHOWN]


def without_secret(text: str) -> str:
    """Return ``text`` without the user part and query of a URL, and without what is given to a name of a secret."""
    head, at, tail = text.rpartition("@")
    scheme, slashes, user = head.rpartition("//") if "//" not in head else head.partition("//")
    if at and (slashes or ":" in user):
        text = f"{scheme}{slashes}...@{tail}"
    if "://" in text:
        text = re.sub(r"\?.*", "?...", text, flags=re.DOTALL)
    return _ASSIGNED.sub(r"\1...", text)


def why(error: BaseException) -> str:
    """Return why something could not be read, in one line: by the error of pydantic, YAML, JSON, codec or file."""
    if isinstance(error, ValidationError):
        fault = error.errors()[0]
        if fault["type"] == "json_invalid":
            return f"no JSON, {fault['ctx']['error']}"
        if fault["type"] == "value_error":
            return str(fault["ctx"]["error"])
        return f"{place_of(fault)} must be {expected(fault)}, is {actual(fault)}".strip()
    if isinstance(error, UnicodeDecodeError):
        return f"no UTF-8 at byte {error.start}"
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON at line {error.lineno}, column {error.colno}"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem}, line {error.problem_mark.line + 1}"
    if isinstance(error, KeyError):
        return f"without {error.args[0]}"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "nested too deep" if isinstance(error, RecursionError) else "a value that is not of its kind"
