"""Are these nodes fit, and how are they linked: what was found, measured and judged."""

from __future__ import annotations

from typing import ClassVar, Literal

from steelrail.artifacts.files import Artifact, Provenance


class DeviceFact(Artifact):
    """One GPU (or CPU stand-in) of a node. ``uuid`` is its hardware id where it has one."""

    index: int
    name: str
    uuid: str
    memory_bytes: int
    matrix_seconds_p50: float
    matrix_digest: str


class NodeFact(Artifact):
    """One node: who it is, what it holds, in which versions."""

    host: str
    leaf: str | None
    ranks: tuple[int, ...]
    devices: tuple[DeviceFact, ...]
    nics: tuple[str, ...]
    versions: dict[str, str]


class Measurement(Artifact):
    """One timed message. Seconds are percentiles over ``repeats``; busbw is GB/s, corrected for the collective."""

    collective: str
    size_bytes: int
    dtype: str
    ranks: tuple[int, ...]
    algorithm: str
    library: str
    repeats: int
    seconds_p50: float
    seconds_p95: float
    seconds_p99: float
    busbw_gb_per_s: float
    what: str = ""  # which of the model's messages this is: block, root or small


class PairMeasurement(Artifact):
    """Exchange between two nodes (``host``) or two GPUs of one node (``host/gpu0``). ``gb_per_s`` counts one direction.

    ``rail`` is the local rank that exchanged; ``intact`` says that every byte arrived as it was sent.
    """

    first: str
    second: str
    size_bytes: int
    gb_per_s: float
    seconds_p50: float
    seconds_p99: float
    rail: int = 0
    intact: bool = True


class Finding(Artifact):
    """One judgement. ``culprit`` is a host, a GPU (``host/gpu3``) or a link (``host-host``)."""

    severity: Literal["warning", "unfit"]
    culprit: str
    what: str


class FabricReport(Artifact):
    """``results/<run>/fabric/report.json``: baseline, verdict, exclude list and receipt.

    ``exclude`` names the hosts that training must leave out. ``replaces`` is the job whose unfit hosts were left out of
    this one ("" where it is the first), ``left_out`` what that job found against them.
    """

    CALLED: ClassVar[str] = "fabric report"
    COMMAND: ClassVar[str] = "steelrail fabric"

    version: int = 1
    run: str
    key: str
    job_id: str
    backend: str
    nodes: tuple[NodeFact, ...]
    num_leaves: int
    pairs: tuple[PairMeasurement, ...]
    world: tuple[Measurement, ...]
    findings: tuple[Finding, ...]
    fit: bool
    exclude: tuple[str, ...]
    hardware_digest: str
    measured: float
    valid_until: float
    provenance: Provenance
    replaces: str = ""
    left_out: tuple[Finding, ...] = ()
