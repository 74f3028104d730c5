"""What ``nvidia-smi`` prints, to typed rows. Pure.

A virtual machine hides much: a field that reads ``[N/A]``, ``[Not Supported]`` or nothing becomes none, never a fault.
"""

from __future__ import annotations

import csv
import re
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
SAMPLE_FIELDS = (
    "timestamp",
    "index",
    "power.draw",
    "clocks.sm",
    "clocks.mem",
    "temperature.gpu",
    "utilization.gpu",
    "utilization.memory",
    "clocks_event_reasons.active",
)
_MIB = 2**20
_KIB = 2**10
_GPU_LINE = re.compile(r"^GPU (\d+): (.*?)(?: \(UUID: (\S+)\))?\s*$")
_SPEED = re.compile(r"^\s+Link (\d+): (?:([\d.]+) GB/s|<inactive>)")
_TRAFFIC = re.compile(r"^\s+Link (\d+): Data (Tx|Rx): (\d+) KiB")


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


@dataclass(frozen=True)
class GpuSample:
    """One look at a working GPU. Watts, MHz, Celsius, percent of time busy; reasons for its clocks as bits."""

    timestamp: str
    index: int
    power_w: float | None
    sm_mhz: float | None
    memory_mhz: float | None
    celsius: float | None
    busy_percent: float | None
    memory_busy_percent: float | None
    reasons: int | None


@dataclass(frozen=True)
class NvlinkRow:
    """One NVLink of one GPU. Speed in GB/s one direction (none: inactive or not said); traffic in bytes since reset."""

    gpu: int
    link: int
    gb_per_s: float | None
    sent_bytes: int | None
    received_bytes: int | None


def parse_gpus(text: str) -> tuple[GpuRow, ...]:
    """Return the GPUs that ``GPU_QUERY`` prints. Lines with another number of columns (warnings) are left out."""
    return tuple(_gpu(row) for row in _rows(text, len(GPU_FIELDS)))


def parse_samples(text: str) -> tuple[GpuSample, ...]:
    """Return the samples of a query of ``SAMPLE_FIELDS`` in a loop; a torn last line is left out."""
    return tuple(_sample(row) for row in _rows(text, len(SAMPLE_FIELDS)))


def parse_nvlink(text: str) -> tuple[NvlinkRow, ...]:
    """Return the links in ``nvidia-smi nvlink --status`` or ``--getthroughput d``, or in both."""
    speed: dict[tuple[int, int], float | None] = {}
    traffic: dict[tuple[int, int, str], int] = {}
    gpu = -1
    for line in text.splitlines():
        if header := _GPU_LINE.match(line):
            gpu = int(header[1])
        elif found := _TRAFFIC.match(line):
            traffic[gpu, int(found[1]), found[2]] = int(found[3]) * _KIB
        elif found := _SPEED.match(line):
            speed[gpu, int(found[1])] = float(found[2]) if found[2] else None
    places = sorted({*speed, *((place, link) for place, link, _ in traffic)})
    return tuple(
        NvlinkRow(*place, speed.get(place), traffic.get((*place, "Tx")), traffic.get((*place, "Rx")))
        for place in places
    )


def _rows(text: str, num_columns: int) -> list[list[str | None]]:
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    known = [[_known(cell) for cell in row] for row in rows if len(row) == num_columns]
    index = 1 if num_columns == len(SAMPLE_FIELDS) else 0
    return [row for row in known if (row[index] or "").isdigit()]


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


def _sample(row: list[str | None]) -> GpuSample:
    timestamp, index, *numbers, reasons = row
    power, sm, memory, celsius, busy, memory_busy = (_float(cell) for cell in numbers)
    return GpuSample(timestamp or "", int(index or 0), power, sm, memory, celsius, busy, memory_busy, _int(reasons))


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
