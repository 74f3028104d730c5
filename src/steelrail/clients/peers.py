"""The door to other nodes' NVMe: files of one attempt, from node to node over plain TCP.

A connection carries one request (a name, signed with the attempt's secret) and one answer (a size, then the bytes).
There is no collective: nobody but the asking thread waits, and every wait ends. What arrives is proved by its digest.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from steelrail.clients import clock
from steelrail.clients.disk import on_disk
from steelrail.clients.ranks import MASTER_ADDR
from steelrail.errors import NodeError, must
from steelrail.log import logger

log = logger(__name__)
CONNECT_SECONDS = 10.0
STALL_SECONDS = 30.0
# A peer that sends less than this is as good as away.
LEAST_BYTES_PER_SECOND = 1e6
CHUNK_BYTES = 2**20
_ASK_BYTES = 512
_SIZE = struct.Struct(">q")
_NOT_THERE = -1
_SIOCGIFADDR = 0x8915


class PeerError(NodeError):
    """A peer could not be asked, or did not answer to the end: no evidence against what it holds."""


@dataclass(frozen=True)
class Peer:
    """Where a node answers. ``host`` is its name for a reader."""

    host: str
    address: str
    port: int


class Server:
    """Answers with the files that ``find`` gives for a name (none: not there), to whoever knows ``secret``."""

    def __init__(self, find: Callable[[str], Path | None], secret: bytes) -> None:
        self._find, self._secret, self._closing = find, secret, False
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._socket = socket.create_server(("", 0), family=family, dualstack_ipv6=both)
        threading.Thread(target=self._accept, name="peer-server", daemon=True).start()

    @property
    def port(self) -> int:
        """The TCP port."""
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Answer no more requests."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if not self._closing:
                    log.warning("a peer could not be heard: %s", error)
                    clock.sleep(1.0)
                continue
            threading.Thread(target=self._answer, args=(connection,), name="peer-answer", daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(STALL_SECONDS)
                name = _asked(connection, self._secret)
                if name is not None:
                    _send(connection, self._find(name))
        except OSError as error:
            log.warning("a peer was not answered to the end: %s", error)


def _asked(connection: socket.socket, secret: bytes) -> str | None:
    """Return the name that was asked for, or none for a request that is not one of ours."""
    with connection.makefile("rb") as lines:
        words = lines.readline(_ASK_BYTES).split()
    if len(words) != 2 or not hmac.compare_digest(words[1], _signature(secret, words[0])):
        return None
    return words[0].decode()


def _send(connection: socket.socket, path: Path | None) -> None:
    try:
        file = path.open("rb") if path is not None else None
    except FileNotFoundError:
        file = None
    if file is None:
        connection.sendall(_SIZE.pack(_NOT_THERE))
        return
    with file:
        connection.sendall(_SIZE.pack(os.fstat(file.fileno()).st_size))
        connection.sendfile(file)


def _signature(secret: bytes, name: bytes) -> bytes:
    return hmac.new(secret, name, "sha256").hexdigest().encode()


def fetch_file(
    peer: Peer, secret: bytes, name: str, path: Path, size_bytes: int, sha256: str, beat: Callable[[], None]
) -> bool:
    """Have a peer's file at ``path``, proved by size and SHA-256; returns false when its copy is missing or damaged.

    Whole or not at all. ``beat`` is called for every chunk. Raises ``PeerError``, and ``NodeError`` for our own disk.
    """
    temporary, found = path.with_name(f".{path.name}.{secrets.token_hex(4)}"), hashlib.sha256()
    try:
        with on_disk(path), temporary.open("xb") as file:
            for chunk in receive(peer, secret, name, size_bytes):
                found.update(chunk)
                file.write(chunk)
                beat()
            file.flush()
            os.fsync(file.fileno())
        if found.hexdigest() == sha256:
            with on_disk(path):
                temporary.replace(path)
            return True
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    log.warning("copy of %s on %s is missing or damaged", name, peer.host)
    return False


def receive(peer: Peer, secret: bytes, name: str, size_bytes: int) -> Iterator[memoryview]:
    """Yield a peer's file in chunks, each good until the next; nothing when it is not there, or of another size."""
    until = clock.monotonic() + STALL_SECONDS + size_bytes / LEAST_BYTES_PER_SECOND
    try:
        with socket.create_connection((peer.address, peer.port), CONNECT_SECONDS) as connection:
            connection.settimeout(STALL_SECONDS)
            connection.sendall(b"%b %b\n" % (name.encode(), _signature(secret, name.encode())))
            buffer = memoryview(bytearray(CHUNK_BYTES))
            (left,) = _SIZE.unpack(_exactly(connection, buffer[: _SIZE.size]))
            if left != size_bytes:
                return
            while left > 0:
                if clock.monotonic() > until:
                    raise TimeoutError("too slow")
                chunk = _exactly(connection, buffer[: min(left, CHUNK_BYTES)])
                left -= len(chunk)
                yield chunk
    except OSError as error:
        do = "see whether it lives, and that nodes reach one another over TCP"
        where = f"{name} at {peer.address}:{peer.port}"
        raise PeerError(must(f"node {peer.host}", "able to send its file", f"not ({error})", where, do)) from error


def _exactly(connection: socket.socket, room: memoryview) -> memoryview:
    """Fill ``room`` from the connection and return it."""
    done = 0
    while done < len(room):
        received = connection.recv_into(room[done:])
        if received == 0:
            raise ConnectionResetError("it ended the connection")
        done += received
    return room


def own_address(env: Mapping[str, str]) -> str:
    """Return an address or name at which other nodes reach this one.

    That of the interface named for gloo, else that of the route to the first rank's node.
    """
    for interface in env.get("GLOO_SOCKET_IFNAME", "").split(","):
        with contextlib.suppress(OSError):
            return _interface_address(interface)
    first = env.get(MASTER_ADDR) or env.get("MASTER_ADDR") or socket.gethostname()
    address = _address_towards(first)
    # The first node finds itself on its loopback; the others know it by the name that they met at.
    return first if address is None or address.startswith(("127.", "::1")) else address


def _interface_address(name: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        found = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
    return socket.inet_ntoa(found[20:24])


def _address_towards(host: str) -> str | None:
    try:
        family, kind, _, _, there = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(there)  # of a datagram socket: sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None
