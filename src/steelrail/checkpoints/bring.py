"""The files of one checkpoint onto this node, proved by digest: from its own NVMe, else a peer's, else the store.

A bad or missing copy is said and the next source asked. What several nodes lack is read from the store by one of them,
and goes from there to the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from steelrail.checkpoints.agree import Ranks
from steelrail.checkpoints.manifest import CheckpointFile, Manifest
from steelrail.checkpoints.peers import Peers
from steelrail.checkpoints.place import Home
from steelrail.clients.disk import on_disk, private_folder, sha256_file
from steelrail.clients.peers import PeerError
from steelrail.clients.store import MissingObjectError
from steelrail.errors import CheckpointError, NodeError, must
from steelrail.log import logger

log = logger(__name__)
STORE_TRIES = 2
Where = Literal["nvme", "peer", "store"]


@dataclass(frozen=True)
class Read:
    """Bytes of a restore, by whence they came: this node's NVMe, another node's, the store."""

    nvme: int = 0
    peer: int = 0
    store: int = 0

    def __add__(self, other: Read) -> Read:
        return Read(self.nvme + other.nvme, self.peer + other.peer, self.store + other.store)

    @property
    def where(self) -> Where:
        """The farthest source that anything came from."""
        return "store" if self.store else "peer" if self.peer else "nvme"


@dataclass(frozen=True)
class Sources:
    """Where this node may have a checkpoint's files from. ``holders``: file name to the node ranks that have it."""

    home: Home
    manifest: Manifest
    holders: Mapping[str, frozenset[int]]
    in_store: bool
    peers: Peers | None

    def path(self, file: CheckpointFile) -> Path:
        """Return where a file lies on this node's NVMe."""
        return self.home.folder(self.manifest.id) / file.name


@dataclass(frozen=True)
class Near:
    """What came from NVMe. ``lacking``: names that only the store has; ``lost``: those that came whole from nobody."""

    read: Read
    lacking: tuple[str, ...]
    lost: tuple[str, ...] = ()


def bring_all(sources: Sources, ranks: Ranks, needed: Iterable[str]) -> Read:
    """Have this node's ``needed`` files on it, its ranks sharing the work; returns what this rank brought.

    Called by all ranks. Raises on all what failed on any (``bring_near``, ``require_found``, ``bring_from_store``).
    """
    mine = share(ranks, needed)
    near = ranks.agree(lambda: (ranks.place.node_rank, bring_near(sources, mine)))
    own = near[ranks.place.rank][1]
    require_found(sources, ranks, own.lost)
    read, lacking = own.read, _by_node(near)
    if not lacking:
        return read
    readers, node_rank = spread(sources.manifest, lacking), ranks.place.node_rank
    once = share(ranks, (name for name, reader in readers.items() if reader == node_rank))
    read += ranks.each(lambda: bring_from_store(sources, once))
    rest = share(ranks, (name for name in lacking.get(node_rank, ()) if readers[name] != node_rank))
    if any(ranks.gather(bool(rest))):
        read += ranks.each(lambda: _bring_from_readers(sources, rest, readers))
    return read


def share(ranks: Ranks, names: Iterable[str]) -> list[str]:
    """Return this rank's part of its node's files."""
    return sorted(names)[ranks.place.local_rank :: ranks.place.ranks_per_node]


def spread(manifest: Manifest, lacking: Mapping[int, Iterable[str]]) -> dict[str, int]:
    """Return which node reads which file from the store: each once, the bytes spread evenly. Pure."""
    nodes: dict[str, list[int]] = {}
    for node_rank, names in lacking.items():
        for name in names:
            nodes.setdefault(name, []).append(node_rank)
    load, readers = dict.fromkeys(lacking, 0), {}
    # Those that one node alone lacks first: there is no choice; then the biggest.
    for file in sorted(map(manifest.file, nodes), key=lambda file: (len(nodes[file.name]) > 1, -file.size_bytes)):
        reader = min(nodes[file.name], key=lambda node_rank: (load[node_rank], node_rank))
        readers[file.name] = reader
        load[reader] += file.size_bytes
    return readers


def bring_near(sources: Sources, names: Iterable[str]) -> Near:
    """Have files from this node's NVMe or a peer's. ``NodeError`` where only one that could not be asked may help."""
    private_folder(sources.home.folder(sources.manifest.id))
    read, lacking = Read(), []
    for file in map(sources.manifest.file, names):
        sources.home.beat()
        if _is_here(sources, file):
            read += Read(nvme=file.size_bytes)
        elif _from_holders(sources, file):
            read += Read(peer=file.size_bytes)
        else:
            lacking.append(file.name)
    return Near(read, tuple(lacking)) if sources.in_store else Near(read, (), lost=tuple(lacking))


def require_found(sources: Sources, ranks: Ranks, mine: Iterable[str]) -> None:
    """Raise what it means that files (``mine``: of this rank) came whole from no node, though their holders answered.

    The holders look at their copies themselves: bytes that change on the way, however often, are no evidence against
    what lies on NVMe. ``CheckpointError`` when a file's copies are all bad, else ``NodeError`` of the host that could
    not have it whole. Called by all ranks.
    """
    lost = set[str]().union(*ranks.gather(tuple(mine)))
    held = share(ranks, (name for name in lost if ranks.place.node_rank in sources.holders.get(name, ())))
    whole = ranks.agree(lambda: [file.name for file in map(sources.manifest.file, held) if _is_here(sources, file)])
    bad = lost.difference(*whole)
    if bad:
        where = f"{sources.manifest.id.folder}/{min(bad)}"
        raise CheckpointError(must("file", "whole on some node", "not", where, "an older checkpoint is taken"))
    ranks.each(lambda: _require_unchanged(sources, mine))


def _require_unchanged(sources: Sources, lost: Iterable[str]) -> None:
    for name in lost:
        where = f"{sources.manifest.id.folder}/{name}"
        do = "see the network between the nodes; the next attempt begins with this checkpoint again"
        raise NodeError(must("file of another node", "as it lies there", "changed on the way each time", where, do))


def bring_from_store(sources: Sources, names: Iterable[str]) -> Read:
    """Have files from the store. One that is not there, or not whole, is evidence: ``CheckpointError``."""
    read = Read()
    for file in map(sources.manifest.file, names):
        read += Read(store=_fetch(sources, file))
        sources.home.beat()
    return read


def _by_node(near: Iterable[tuple[int, Near]]) -> dict[int, list[str]]:
    lacking: dict[int, list[str]] = {}
    for node_rank, one in near:
        if one.lacking:
            lacking.setdefault(node_rank, []).extend(one.lacking)
    return lacking


def _is_here(sources: Sources, file: CheckpointFile) -> bool:
    path = sources.path(file)
    with on_disk(path):
        if not path.is_file():
            return False
        whole = path.stat().st_size == file.size_bytes
    if whole and sha256_file(path) == file.sha256:
        return True
    log.warning("%s/%s on this node is damaged: another copy is taken", sources.manifest.id.folder, file.name)
    return False


def _from_holders(sources: Sources, file: CheckpointFile) -> bool:
    """Have a file from one of the other nodes that hold it, the next in the ring first."""
    peers = sources.peers
    if peers is None:
        return False
    others = sorted(sources.holders.get(file.name, frozenset()) - {peers.node_rank}, key=peers.distance)
    away: PeerError | None = None
    # Where there is no other source, twice: bytes may have changed on the way.
    for node_rank in others if sources.in_store else 2 * others:
        try:
            if peers.fetch(node_rank, sources.home, sources.manifest.id, file):
                return True
        except PeerError as error:
            away = error
            log.warning("another source is asked: %s", error)
    if away is not None and not sources.in_store:
        raise away
    return False


def _bring_from_readers(sources: Sources, names: Iterable[str], readers: Mapping[str, int]) -> Read:
    """Have files from the nodes that read them; from the store too where that fails."""
    read, peers = Read(), sources.peers
    assert peers is not None  # more than one node lacked them
    for file in map(sources.manifest.file, names):
        try:
            came = peers.fetch(readers[file.name], sources.home, sources.manifest.id, file)
        except PeerError as error:
            log.warning("read from the store once more: %s", error)
            came = False
        read += Read(peer=file.size_bytes) if came else bring_from_store(sources, [file.name])
    return read


def _fetch(sources: Sources, file: CheckpointFile) -> int:
    """Have one file from the store; if other bytes come, once more: they may have changed on the way."""
    home, manifest, path = sources.home, sources.manifest, sources.path(file)
    for _ in range(STORE_TRIES):
        try:
            size_bytes = home.store.get_file(home.object_key(manifest.id, file.name), path)
        except MissingObjectError as error:
            raise CheckpointError(f"{error}") from error
        home.beat()
        found = sha256_file(path)
        if found == file.sha256:
            break
        log.warning("%s/%s from the store is not what its manifest says", manifest.id.folder, file.name)
    require_digest(file, found, manifest)
    return size_bytes


def require_digest(file: CheckpointFile, found: str, manifest: Manifest) -> None:
    """Raise ``CheckpointError`` unless a file has the digest that its manifest says."""
    if found != file.sha256:
        where = f"{manifest.id.folder}/{file.name}"
        raise CheckpointError(must("SHA-256", file.sha256[:12], found[:12], where, "an older checkpoint is taken"))
