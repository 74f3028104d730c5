"""What a node says of itself: leaf switch, GPUs, network ports, versions. An edge: reads /sys, /proc and tools."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from steelrail.artifacts.fabric import DeviceFact
from steelrail.clients import process
from steelrail.clients.ranks import RankPlace
from steelrail.fabric.facts import RankFact
from steelrail.fabric.health import Health
from steelrail.formats.nvidia_smi import GPU_QUERY, GpuRow, parse_gpus
from steelrail.formats.topology import leaf_of, leaf_of_address, parse_topology

_TOOL_SECONDS = 10


def look_around(place: RankPlace, device: torch.device, health: Health) -> RankFact:
    """Return what this rank knows of itself and its node."""
    gpus = parse_gpus(_output(GPU_QUERY)) if device.type == "cuda" else ()
    return RankFact(
        rank=place.rank,
        host=place.host,
        leaf=find_leaf(place.host, os.environ),
        device=_device_fact(place, device, health),
        nics=network_ports(Path("/sys/class"), [name for _, name in socket.if_nameindex()]),
        versions=_versions(device, gpus),
    )


def find_leaf(host: str, env: Mapping[str, str]) -> str | None:
    """Return the leaf switch of this host: as Slurm told the job step, else as ``scontrol`` says, else none."""
    told = leaf_of_address(env.get("SLURM_TOPOLOGY_ADDR", ""), env.get("SLURM_TOPOLOGY_ADDR_PATTERN", ""))
    return told or leaf_of(host, parse_topology(_output(("scontrol", "show", "topology"))))


def network_ports(sys_class: Path, interfaces: Iterable[str]) -> tuple[str, ...]:
    """Return the network ports below ``/sys/class``: ``eth0 10000 Mb/s``, ``mlx5_0/1 400 Gb/sec (4X NDR) ACTIVE``."""
    # /sys may be another network namespace's: the kernel's own list says which interfaces this process has.
    links = [_ethernet(sys_class / "net" / name) for name in sorted(interfaces) if name != "lo"]
    ports = [_infiniband(path) for path in sorted(sys_class.glob("infiniband/*/ports/*"))]
    return tuple(text for text in (*links, *ports) if text)


def _ethernet(path: Path) -> str:
    speed = _read(path / "speed")
    # A virtual port has no speed, or says -1.
    return f"{path.name} {speed} Mb/s" if speed.isdigit() else path.name


def _infiniband(path: Path) -> str:
    state = _read(path / "state").partition(": ")[2]
    return f"{path.parents[1].name}/{path.name} {_read(path / 'rate')} {state}".strip()


def _device_fact(place: RankPlace, device: torch.device, health: Health) -> DeviceFact:
    timed = {"matrix_seconds_p50": health.seconds_p50, "matrix_digest": health.digest}
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        index = device.index if device.index is not None else place.local_rank
        memory = int(found.total_memory)
        return DeviceFact(index=index, name=found.name, uuid=device_uuid(device), memory_bytes=memory, **timed)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return DeviceFact(index=place.local_rank, name=_cpu_name(), uuid="", memory_bytes=memory, **timed)


def device_uuid(device: torch.device) -> str:
    """Return the hardware id of a GPU (``GPU-...``); a CPU has none."""
    if device.type != "cuda":
        return ""
    return f"GPU-{getattr(torch.cuda.get_device_properties(device), 'uuid', '')}"


def device_name(device: torch.device) -> str:
    """Return the model of a device: ``NVIDIA H200``, or the processor's name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()


def _cpu_name() -> str:
    lines = _read(Path("/proc/cpuinfo")).splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _versions(device: torch.device, gpus: tuple[GpuRow, ...]) -> dict[str, str]:
    versions = {"torch": torch.__version__, "python": platform.python_version(), "kernel": platform.release()}
    if device.type == "cuda":
        versions["cuda"] = str(torch.version.cuda)
        versions["nccl"] = nccl_version()
        versions["driver"] = next((gpu.driver for gpu in gpus if gpu.driver), "unknown")
    return versions


def nccl_version() -> str:
    """Return the version of the NCCL that torch uses: ``2.28.9``."""
    return ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]


def _output(argv: tuple[str, ...]) -> str:
    """Return what a tool prints, or nothing when it is missing, fails or takes too long."""
    try:
        done = process.run(argv, _TOOL_SECONDS)
    except OSError:
        return ""
    return done.stdout if done.ok else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
