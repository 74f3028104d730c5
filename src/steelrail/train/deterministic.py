"""Deterministic mode across attempts: choices outside the mathematics that decide the last bit, pinned and compared.

A sum of floats depends on its order, and NCCL's order on algorithm, protocol, channels and mesh. They are pinned before
NCCL starts, kept in every checkpoint, and compared when one is taken up. Why so: docs/decisions/0005. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from steelrail.config.schema import Run, Shape
from steelrail.errors import ConfigError, must

_CHANNELS = ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")
# What else of the environment reorders sums: a buffer's size sets the chunks of a ring.
SETTINGS = ("CUBLAS_WORKSPACE_CONFIG", "NCCL_ALGO", "NCCL_PROTO", *_CHANNELS, "NCCL_BUFFSIZE")
_NVLINK_CHANNELS = 24
_FEW_CHANNELS, _MOST_CHANNELS = 16, 32
_SETTING, _MESH, _VERSION = "setting.", "mesh.", "version."


@dataclass(frozen=True)
class Change:
    """One choice that is another now than in the checkpoint; none where it was not made."""

    name: str
    before: str | None
    now: str | None

    @property
    def text(self) -> str:
        """The change for a reader: ``NCCL_ALGO was Ring, is Tree``."""
        return f"{self.name.partition('.')[2]} was {self.before or 'not set'}, is {self.now or 'not set'}"


def pinned(run: Run, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a rank must set before NCCL starts. What ``environment`` holds stays the user's.

    ``Ring`` and ``Simple`` exist for every collective that training makes; other algorithms do not, and NCCL refuses
    a collective without one.
    """
    if not run.train.deterministic or run.shape.device == "cpu":
        return {}
    wanted = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
    # Two names for each bound: one of ours could contradict one of the user's.
    if not any(name in environment for name in _CHANNELS):
        wanted |= dict.fromkeys(("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"), str(num_channels(run.shape)))
    return {name: value for name, value in wanted.items() if name not in environment}


def num_channels(shape: Shape) -> int:
    """Return how many channels NCCL 2.28 takes itself on sound Hopper nodes of this shape (``src/graph/connect.cc``).

    Between nodes two for each rail, doubled while few; inside one node what NVLink carries.
    """
    if shape.nodes == 1:
        return _NVLINK_CHANNELS
    channels = 2 * shape.rails
    return min(_MOST_CHANNELS, channels if channels >= _FEW_CHANNELS else 2 * channels)


def choices(run: Run, environment: Mapping[str, str], versions: Mapping[str, str]) -> dict[str, str]:
    """Return what a checkpoint says of this attempt's choices: settings, mesh, versions. Nothing out of the mode."""
    if not run.train.deterministic:
        return {}
    shape = run.shape
    mesh = {"world_size": str(shape.world_size), "ranks_per_node": str(shape.ranks_per_node)}
    # On the CPU the threads of a rank share its sums.
    threads = {"cpus_per_rank": str(run.slurm.cpus_per_rank)} if shape.device == "cpu" else {}
    return {
        **{f"{_SETTING}{name}": environment[name] for name in SETTINGS if name in environment},
        **{f"{_MESH}{name}": value for name, value in {**mesh, **threads}.items()},
        **{f"{_VERSION}{name}": value for name, value in versions.items()},
    }


def departure(run: Run, before: Mapping[str, object], now: Mapping[str, str], step: int) -> str | None:
    """Return why the bits from ``step`` on may be others than without the interruption, or none: they are the same.

    ``before`` is what the checkpoint says, ``now`` are this attempt's ``choices``. Raises ``ConfigError`` for a setting
    that changed on the same mesh without a word in the run file.
    """
    changed = changes(before, now)
    if not changed:
        return None
    if not any(name.startswith(_MESH) for name in before):
        return f"equality to the last bit is not known: the checkpoint of step {step} does not say how it was made"
    if not any(one.name.startswith(_MESH) for one in changed):
        _require_meant(run, changed, step)
    return f"equality to the last bit ends at step {step}: {'; '.join(one.text for one in changed)}"


def changes(before: Mapping[str, object], now: Mapping[str, str]) -> tuple[Change, ...]:
    """Return the choices that differ. Other things that a checkpoint says (its attempt) are left out."""
    said = {name: str(value) for name, value in before.items() if name.startswith((_SETTING, _MESH, _VERSION))}
    found = (Change(name, said.get(name), now.get(name)) for name in sorted({*said, *now}))
    return tuple(one for one in found if one.before != one.now)


def _require_meant(run: Run, changed: tuple[Change, ...], step: int) -> None:
    for one in changed:
        name = one.name.removeprefix(_SETTING)
        if one.name.startswith(_SETTING) and name not in run.slurm.environment:
            do = "undo that for equal bits, or put the new value into slurm.environment to go on without"
            where, old = "environment of the ranks", one.before or "not set"
            raise ConfigError(must(name, f"{old}, as at step {step}", one.now or "not set", where, do))
