"""What ``nvidia-smi`` prints, to typed rows. Pure.

A virtual machine hides much: a field that reads ``[N/A]``, ``[Not Supported]`` or nothing becomes none, never a fault.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass

# The order in which ``parse_gpus`` expects its columns.
GPU_FIELDS = (
    "index",
    "name",
    "uuid",
    "serial",
    "pci.bus_id",
    "driver_version",
    "vbios_version",
    "memory.total",
    "power.limit",
    "ecc.errors.uncorrected.volatile.total",
)
GPU_QUERY = ("nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits")
_MIB = 2**20


@dataclass(frozen=True)
class GpuRow:
    """One GPU as the driver knows it. Memory in bytes, power in watts."""

    index: int
    name: str
    uuid: str
    serial: str | None
    bus_id: str | None
    driver: str | None
    vbios: str | None
    memory_bytes: int | None
    power_limit_w: float | None
    ecc_errors: int | None


def parse_gpus(text: str) -> tuple[GpuRow, ...]:
    """Return the GPUs that ``GPU_QUERY`` prints. Lines with another number of columns (warnings) are left out."""
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    known = [[_known(cell) for cell in row] for row in rows if len(row) == len(GPU_FIELDS)]
    return tuple(_gpu(row) for row in known if (row[0] or "").isdigit())


def _known(cell: str) -> str | None:
    text = cell.strip()
    return None if text in ("", "N/A") or text.startswith("[") else text


def _gpu(row: list[str | None]) -> GpuRow:
    index, name, uuid, serial, bus_id, driver, vbios, memory, power, ecc = row
    mib = _float(memory)
    return GpuRow(
        index=int(index or 0),
        name=name or "unknown",
        uuid=uuid or "",
        serial=None if serial == "0" else serial,
        bus_id=bus_id,
        driver=driver,
        vbios=vbios,
        memory_bytes=None if mib is None else int(mib * _MIB),
        power_limit_w=_float(power),
        ecc_errors=_int(ecc),
    )


def _float(cell: str | None) -> float | None:
    try:
        return float((cell or "").split(" ")[0])
    except ValueError:
        return None


def _int(cell: str | None) -> int | None:
    try:
        return int(cell or "", 0)
    except ValueError:
        return None
