"""Names, keys and paths of a checkpoint, in the store and on NVMe. Pure.

Store, below ``<prefix>/<run>/<key>/``: ``fence/<epoch>.json``, ``steps/<step>-<epoch>/<files>``.
NVMe, below ``<clients.disk.node_root>/<run>/<key>/checkpoints/``: ``<step>-<epoch>/<files>``, a node's own and, as a
second copy, those of the node before it.
The manifest is written last in both; no folder is used twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MANIFEST = "manifest.json"
LOCAL_COMMIT = "local.json"
METADATA = ".metadata"
_FOLDER = re.compile(r"(\d{10})-(\d{8})")
_FENCE = re.compile(r"(\d{8})(|\.resume|\.committed|\.rollback)\.json")
_FILE = re.compile(r"__\d+_\d+\.distcp|\.metadata")


@dataclass(frozen=True, order=True)
class StepId:
    """Which checkpoint: its step, and the epoch (the fence) of the attempt that made it. Newer is greater."""

    step: int
    epoch: int

    @property
    def folder(self) -> str:
        """Name of its folder, in the store and on NVMe."""
        return f"{self.step:010d}-{self.epoch:08d}"


def parse_folder(name: str) -> StepId | None:
    """Return which checkpoint a folder holds, or none when the name is not one of ours."""
    match = _FOLDER.fullmatch(name)
    return StepId(int(match[1]), int(match[2])) if match else None


def fence_name(epoch: int, kind: str = "") -> str:
    """Return the name of a fence, or of its ``resume``, ``committed`` or ``rollback`` record."""
    return f"{epoch:08d}{'.' if kind else ''}{kind}.json"


def parse_fence(name: str) -> tuple[int, str] | None:
    """Return (epoch, kind) of an object below ``fence/``, or none; kind is empty for the fence itself."""
    match = _FENCE.fullmatch(name)
    return (int(match[1]), match[2].removeprefix(".")) if match else None


def receipt_name(node_rank: int) -> str:
    """Return the name of a node's receipt: its files of this checkpoint are in the store."""
    return f"node-{node_rank:05d}.json"


def is_checkpoint_file(name: str) -> bool:
    """Whether ``name`` is one that torch's distributed checkpoint gives its files; only such are joined to paths."""
    return _FILE.fullmatch(name) is not None


def rank_files(rank: int) -> str:
    """Return the pattern of the files that a rank writes."""
    return f"__{rank}_*.distcp"


def local_root(nvme: Path, run: str, key: str) -> Path:
    """Return the folder of a model's checkpoints on a node's NVMe."""
    return nvme / run / key / "checkpoints"
