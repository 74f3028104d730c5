"""The two collectives that torch renamed in 2.13, under one name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

_gather: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def all_gather(whole: torch.Tensor, part: torch.Tensor) -> None:
    """Fill ``whole`` with every rank's ``part``, in rank order (whole: world size x part)."""
    _gather(whole, part)


def reduce_scatter(part: torch.Tensor, whole: torch.Tensor) -> None:
    """Sum every rank's ``whole`` and keep this rank's share in ``part``."""
    _scatter(part, whole)
