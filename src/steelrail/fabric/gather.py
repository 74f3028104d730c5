"""Small records from every rank to every rank, as JSON in tensors: any backend, nothing unpickled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

from steelrail.fabric.collectives import all_gather

T = TypeVar("T")


def gather_records(record: T, kind: TypeAdapter[T], device: torch.device) -> list[T]:
    """Return the record of every rank, in rank order. Every rank must call it."""
    data = torch.frombuffer(bytearray(kind.dump_json(record)), dtype=torch.uint8).to(device)
    sizes = [int(size) for size in gather_numbers([float(data.numel())], device)[:, 0]]
    mine = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
    mine[: data.numel()] = data
    everyone = torch.empty(len(sizes) * max(sizes), dtype=torch.uint8, device=device)
    all_gather(everyone, mine)
    rows = everyone.cpu().view(len(sizes), max(sizes))
    return [kind.validate_json(bytes(row[:size].tolist())) for row, size in zip(rows, sizes, strict=True)]


def gather_numbers(numbers: Sequence[float], device: torch.device) -> torch.Tensor:
    """Return the numbers of every rank: float64 on the host, [world size, len(numbers)]. All ranks give as many."""
    mine = torch.tensor(numbers, dtype=torch.float64, device=device)
    everyone = torch.empty(dist.get_world_size() * len(numbers), dtype=torch.float64, device=device)
    all_gather(everyone, mine)
    return everyone.cpu().view(dist.get_world_size(), len(numbers))
