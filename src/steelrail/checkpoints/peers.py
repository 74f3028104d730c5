"""The nodes of one attempt to one another: each serves its checkpoint files, every rank may ask for one."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from steelrail.checkpoints.agree import Ranks
from steelrail.checkpoints.layout import StepId, is_checkpoint_file, parse_folder
from steelrail.checkpoints.manifest import CheckpointFile
from steelrail.checkpoints.place import Home
from steelrail.clients.peers import Peer, Server, fetch_file, own_address

_SECRET_BYTES = 32


@dataclass(frozen=True)
class Peers:
    """Where every node answers, by node rank. ``server``: this node's own, on its first rank."""

    node_rank: int
    nodes: tuple[Peer, ...]
    secret: bytes
    server: Server | None = None

    @property
    def ward(self) -> int:
        """The node whose buddy this one is: the one before it in the ring."""
        return (self.node_rank - 1) % len(self.nodes)

    def distance(self, node_rank: int) -> int:
        """Return how far a node is from this one round the ring, so that not all ask the same."""
        return (node_rank - self.node_rank) % len(self.nodes)

    def fetch(self, node_rank: int, home: Home, which: StepId, file: CheckpointFile) -> bool:
        """Have a node's copy of a file in this node's folder; returns false when that copy is missing or damaged.

        Raises ``PeerError`` when the node could not be asked.
        """
        peer, name, path = self.nodes[node_rank], f"{which.folder}/{file.name}", home.folder(which) / file.name
        return fetch_file(peer, self.secret, name, path, file.size_bytes, file.sha256, home.beat)

    def close(self) -> None:
        """Serve no more."""
        if self.server is not None:
            self.server.close()


def meet(home: Home, ranks: Ranks) -> Peers | None:
    """Have every node serve what it holds, and return all; none where there is one node. Called by all ranks."""
    if ranks.place.num_nodes == 1:
        return None
    secret = ranks.from_rank(0, lambda: secrets.token_bytes(_SECRET_BYTES))
    server = ranks.each(lambda: Server(lambda name: found(home.local, name), secret) if ranks.leads_node else None)
    said = ranks.gather(Peer(ranks.place.host, own_address(os.environ), server.port) if server else None)
    return Peers(ranks.place.node_rank, tuple(peer for peer in said if peer is not None), secret, server)


def found(local: Path, name: str) -> Path | None:
    """Return the file that a peer asked for, or none when its name is not one that a checkpoint's file has."""
    folder, _, file = name.partition("/")
    return local / folder / file if parse_folder(folder) is not None and is_checkpoint_file(file) else None
