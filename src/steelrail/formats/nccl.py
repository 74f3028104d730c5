"""What NCCL writes: its ``NCCL_DEBUG=INFO`` log and its topology file, to typed rows. Pure.

A virtual machine hides PCI paths (``numaid="-1"``, ``link_width="0"``, an NVLink target of ``fffffff:ff:ff.0``): the
rows then hold none.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

from steelrail.errors import InputError, must

MAX_XML_BYTES = 4_000_000
_VERSION = re.compile(r"NCCL version ([\w.+-]+)")
_CHANNELS = re.compile(r"(\d+) coll channels, .*?(\d+) nvls channels, (\d+) p2p channels")
_VIA = re.compile(r"Channel \d+(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\] (?:\[\w+\] )?via (\S+)")
_NETWORK = re.compile(r"Using network (.+?)\s*$", re.MULTILINE)
_CHOICE = re.compile(
    r"NCCL INFO (\w+): (\d+) Bytes -> Algo (\w+) proto (\w+)(?: channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\})?"
)
_INIT = re.compile(r"ncclCommInitRank\w*: rank (\d+) nranks (\d+) total ([\d.]+)")
_HIDDEN_TARGET = "fffffff:ff:ff.0"


@dataclass(frozen=True)
class Path:
    """How one rank reaches another: ``P2P/CUMEM``, ``SHM``, ``NET/IB/0/GDRDMA`` ..."""

    source: int
    target: int
    via: str


@dataclass(frozen=True)
class Choice:
    """The algorithm and protocol that NCCL chose for a message."""

    collective: str
    size_bytes: int
    algorithm: str
    protocol: str
    num_channels: int | None


@dataclass(frozen=True)
class NcclLog:
    """What a log says. Counts are none where it does not say; seconds are those of the slowest rank's start."""

    version: str | None
    network: str | None
    num_channels: int | None
    num_nvls_channels: int | None
    num_p2p_channels: int | None
    paths: tuple[Path, ...]
    choices: tuple[Choice, ...]
    init_seconds: float | None

    @property
    def transports(self) -> tuple[str, ...]:
        """The distinct ways between ranks, without device numbers: ``("NET/Socket", "P2P/CUMEM")``."""
        return tuple(sorted({_kind_of_path(path.via) for path in self.paths}))


@dataclass(frozen=True)
class GpuNode:
    """One GPU of the topology file. ``nvlinks`` counts its links; a target is none where the machine hides it."""

    dev: int
    bus_id: str
    compute_capability: int | None
    numa: int | None
    pci_width: int | None
    nvlinks: tuple[tuple[str | None, int], ...]


@dataclass(frozen=True)
class NetNode:
    """One network port of the topology file. ``gbit_per_s`` is none where NCCL does not know it."""

    name: str
    gbit_per_s: float | None
    gdr: bool


@dataclass(frozen=True)
class NcclTopology:
    """GPUs and network ports of one node, as NCCL sees them."""

    gpus: tuple[GpuNode, ...]
    nets: tuple[NetNode, ...]


def parse_log(text: str) -> NcclLog:
    """Return what an ``NCCL_DEBUG=INFO`` log says; lines of several ranks may be mixed."""
    channels = _CHANNELS.search(text)
    counts = [int(count) for count in channels.groups()] if channels else [None, None, None]
    starts = [float(match[3]) for match in _INIT.finditer(text)]
    return NcclLog(
        version=_first(_VERSION, text),
        network=_first(_NETWORK, text),
        num_channels=counts[0],
        num_nvls_channels=counts[1],
        num_p2p_channels=counts[2],
        paths=tuple(dict.fromkeys(Path(int(match[1]), int(match[2]), match[3]) for match in _VIA.finditer(text))),
        choices=tuple(dict.fromkeys(_choice(match) for match in _CHOICE.finditer(text))),
        init_seconds=max(starts, default=None),
    )


def parse_topology(text: str) -> NcclTopology:
    """Return the GPUs and ports of ``NCCL_TOPO_DUMP_FILE``. Raises ``InputError`` when it is not such a file."""
    if len(text) > MAX_XML_BYTES or "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise InputError(
            must("an NCCL topology", f"plain XML below {MAX_XML_BYTES} bytes", "not", "topology", "dump it anew")
        )
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise InputError(must("an NCCL topology", "XML", f"not ({error})", "topology", "dump it anew")) from error
    if root.tag != "system":
        raise InputError(must("an NCCL topology", "a <system>", f"<{root.tag}>", "topology", "dump it anew"))
    gpus = [
        _gpu_node(cpu, pci, gpu) for cpu in root.iter("cpu") for pci in cpu.iter("pci") for gpu in pci.findall("gpu")
    ]
    return NcclTopology(tuple(gpus), tuple(_net_node(net) for net in root.iter("net")))


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[1] if match else None


def _kind_of_path(via: str) -> str:
    return "/".join(part for part in via.split("/") if not part.isdigit())


def _choice(match: re.Match[str]) -> Choice:
    num_channels = int(match[6]) - int(match[5]) + 1 if match[5] else None
    return Choice(match[1], int(match[2]), match[3], match[4], num_channels)


def _gpu_node(cpu: ElementTree.Element, pci: ElementTree.Element, gpu: ElementTree.Element) -> GpuNode:
    links = [(_target(link.get("target")), int(link.get("count", "0"))) for link in gpu.findall("nvlink")]
    return GpuNode(
        dev=int(gpu.get("dev", "0"), 0),
        bus_id=pci.get("busid", ""),
        compute_capability=_positive(gpu.get("sm")),
        numa=_not_negative(cpu.get("numaid")),
        pci_width=_positive(pci.get("link_width")),
        nvlinks=tuple(links),
    )


def _net_node(net: ElementTree.Element) -> NetNode:
    megabits = _positive(net.get("speed"))
    return NetNode(net.get("name", ""), None if megabits is None else megabits / 1000, net.get("gdr") == "1")


def _target(text: str | None) -> str | None:
    return None if text in (None, "", _HIDDEN_TARGET) else text


def _not_negative(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _positive(text: str | None) -> int | None:
    return _not_negative(text) or None
