"""Steelrail: Parquet and a Slurm cluster in, a trained model and an exact bill out.

The library in six names: ``load_run`` or ``parse_run`` makes a ``Run``, ``prepare`` its data, ``submit`` trains it, and
``bill`` says what it cost.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from steelrail.config.load import load_run, parse_run
from steelrail.config.schema import Run

if TYPE_CHECKING:
    from steelrail.cost.edge import run_stage as bill
    from steelrail.data import prepare
    from steelrail.launch.job import SteelrailJob
    from steelrail.launch.submit import submit

__all__ = ["Run", "SteelrailJob", "bill", "load_run", "parse_run", "prepare", "submit"]

# Imported only when asked for: ranks and shard jobs never submit, and start sooner without.
_HOMES = {
    "SteelrailJob": ("steelrail.launch.job", "SteelrailJob"),
    "bill": ("steelrail.cost.edge", "run_stage"),
    "prepare": ("steelrail.data", "prepare"),
    "submit": ("steelrail.launch.submit", "submit"),
}


def __getattr__(name: str) -> Any:
    """Import what submits at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'steelrail' has no attribute {name!r}")
    module, found = _HOMES[name]
    return getattr(import_module(module), found)
