"""The bill: every dollar to what it bought. Money is integer micro-dollars."""

from __future__ import annotations

from typing import ClassVar, Literal

from steelrail.artifacts.files import Artifact, Provenance
from steelrail.artifacts.requests import Requests


class CategoryCost(Artifact):
    """Time and money of one category."""

    gpu_seconds: float
    micro_usd: int


class BilledSegment(Artifact):
    """One of Slurm's own rows: what was allocated, how long, what it cost."""

    stage: str
    job_id: str
    segment: int
    state: str
    nodes: tuple[str, ...]
    start: float
    end: float
    gpus: int
    cpus: int
    gpu_seconds: float
    micro_usd: int
    categories: dict[str, CategoryCost]


class Comparison(Artifact):
    """The same GPU-hours at another price."""

    provider: str
    sku: str
    region: str
    mode: str
    usd_per_gpu_hour: str
    micro_usd: int
    read_on: str
    source: str
    trust: str
    stale: bool


class RequestsCost(Artifact):
    """Requests to the store, beside the bill. ``micro_usd`` is none when they cannot be priced: ``reason`` says why.

    ``counts``: by stage (processes that have no attempt) and by attempt (its ranks); ``total`` is their sum.
    """

    counts: dict[str, Requests]
    total: Requests
    micro_usd: int | None
    reason: str | None
    service: str | None
    read_on: str | None
    source: str | None


class CostSummary(Artifact):
    """``results/<run>/cost/summary.json``. ``categories`` sum to ``total_micro_usd`` (none: unavailable) exactly."""

    CALLED: ClassVar[str] = "summary of the bill"
    COMMAND: ClassVar[str] = "steelrail cost"

    version: int = 2
    run: str
    key: str
    train_key: str
    status: Literal["exact", "estimated", "unavailable"]
    reason: str | None
    total_micro_usd: int | None
    gpu_seconds: float
    cpu_seconds: float
    categories: dict[str, CategoryCost]
    attempts: int
    segments: tuple[BilledSegment, ...]
    unattributed_share: float
    goodput: float
    micro_usd_per_million_tokens: int | None
    storage_micro_usd_per_month: int | None
    requests: RequestsCost
    provider: str
    sku: str
    usd_per_gpu_hour: str
    comparisons: tuple[Comparison, ...]
    provenance: Provenance
