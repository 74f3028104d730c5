"""Steelrail: Parquet and a Slurm cluster in, a trained model and an exact bill out.

The library in five names: ``load_run`` or ``parse_run`` makes a ``Run``, ``prepare`` its data, ``submit`` trains it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from steelrail.config.load import load_run, parse_run
from steelrail.config.schema import Run

if TYPE_CHECKING:
    from steelrail.data import prepare
    from steelrail.launch.job import SteelrailJob
    from steelrail.launch.submit import submit

__all__ = ["Run", "SteelrailJob", "load_run", "parse_run", "prepare", "submit"]

# Imported only when asked for: ranks and shard jobs never submit, and start sooner without.
_HOMES = {
    "SteelrailJob": "steelrail.launch.job",
    "prepare": "steelrail.data",
    "submit": "steelrail.launch.submit",
}


def __getattr__(name: str) -> Any:
    """Import what submits at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'steelrail' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
