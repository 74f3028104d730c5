"""The door to a rank's place: which rank this process is, and where all ranks meet."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from steelrail.errors import ClusterError, must

# Set by whoever starts the ranks (``launch``); torchrun's own names are taken where they are not.
MASTER_ADDR = "STEELRAIL_MASTER_ADDR"
MASTER_PORT = "STEELRAIL_MASTER_PORT"
# The nodes of the ranks in their order, which is not Slurm's once a spare has taken a lost node's place.
NODES = "STEELRAIL_NODES"
# The fencing epoch that the supervisor claimed for this attempt.
EPOCH = "STEELRAIL_EPOCH"
# When the process began from which a node's ranks were forked (Unix seconds).
NODE_STARTED = "STEELRAIL_NODE_STARTED"
_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,253}")


@dataclass(frozen=True)
class RankPlace:
    """Where one process stands among all. ``host`` is the node's name as Slurm writes it, where there is Slurm."""

    rank: int
    world_size: int
    local_rank: int
    node_rank: int
    num_nodes: int
    host: str

    @property
    def ranks_per_node(self) -> int:
        """Ranks of each node (every node has as many)."""
        return self.world_size // self.num_nodes


@dataclass(frozen=True)
class Master:
    """Address and TCP port at which rank 0 keeps the store of the process group."""

    address: str
    port: int


def rank_place() -> RankPlace:
    """Return the place of this process. Raises ``ClusterError`` outside Slurm and torchrun."""
    return place_from(os.environ, socket.gethostname())


def master() -> Master:
    """Return where the ranks meet. Raises ``ClusterError`` when nobody said."""
    return master_from(os.environ)


def free_port() -> int:
    """Return a TCP port that is free on this host now; for whoever starts the ranks, on the first rank's host."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def place_from(env: Mapping[str, str], hostname: str) -> RankPlace:
    """Return the place that an environment describes.

    RANK, WORLD_SIZE and LOCAL_RANK win when all three are set (a local start, perhaps inside a Slurm job); else
    ``srun``'s variables count. ``hostname`` names the host where Slurm does not.
    """
    host = env.get("SLURMD_NODENAME") or hostname.split(".")[0]
    if all(name in env for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")):
        return _checked(_explicit(env, hostname.split(".")[0]))
    if "SLURM_PROCID" in env:
        return _checked(_of_step(env, host))
    raise ClusterError(
        must("a rank", "started by srun or torchrun", "neither", "environment", "set RANK, WORLD_SIZE and LOCAL_RANK")
    )


def master_from(env: Mapping[str, str]) -> Master:
    """Return the meeting place that an environment names."""
    address = env.get(MASTER_ADDR) or env.get("MASTER_ADDR") or ""
    port = env.get(MASTER_PORT) or env.get("MASTER_PORT") or ""
    if not _ADDRESS.fullmatch(address):
        raise ClusterError(
            must(MASTER_ADDR, "a host name or address", repr(address), "environment", "set it before the ranks start")
        )
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ClusterError(
            must(MASTER_PORT, "a port (1 to 65535)", repr(port), "environment", "set it before the ranks start")
        )
    return Master(address, int(port))


def _explicit(env: Mapping[str, str], host: str) -> RankPlace:
    rank, world_size, local_rank = (_number(env, name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    ranks_per_node = _number(env, "LOCAL_WORLD_SIZE", world_size)
    num_nodes = _number(env, "NUM_NODES", max(1, world_size // max(1, ranks_per_node)))
    node_rank = _number(env, "GROUP_RANK", _number(env, "NODE_RANK", rank // max(1, ranks_per_node)))
    return RankPlace(rank, world_size, local_rank, node_rank, num_nodes, env.get("STEELRAIL_HOST") or host)


def _of_step(env: Mapping[str, str], host: str) -> RankPlace:
    # A step may be smaller than its job: its own counts come first.
    world_size = _number(env, "SLURM_STEP_NUM_TASKS", _number(env, "SLURM_NTASKS", 1))
    num_nodes = _number(env, "SLURM_STEP_NUM_NODES", _number(env, "SLURM_NNODES", 1))
    place = (_number(env, "SLURM_PROCID"), world_size, _number(env, "SLURM_LOCALID"), _number(env, "SLURM_NODEID"))
    nodes = env.get(NODES, "").split(",")
    if world_size == num_nodes and host in nodes:
        place = (nodes.index(host), world_size, 0, nodes.index(host))
    return RankPlace(*place, num_nodes, host)


def _number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = env.get(name)
    if text is None and default is not None:
        return default
    if text is None or not (text.isascii() and text.isdigit()):
        raise ClusterError(must(name, "a whole number", repr(text), "environment", "start the ranks by srun"))
    return int(text)


def _checked(place: RankPlace) -> RankPlace:
    uneven = place.num_nodes < 1 or place.world_size % place.num_nodes
    if uneven or not (place.rank < place.world_size and place.node_rank < place.num_nodes):
        raise ClusterError(
            must("a rank's place", "within equal nodes", place, "environment", "start as many ranks on every node")
        )
    return place
