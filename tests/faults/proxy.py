"""An HTTP proxy between our store client and a real S3 server, which does on demand what networks and servers do.

``proxy.add(Fault("reset-after", verb="put", key="manifest.json"))`` befalls the next such request; what no fault is for
goes through unchanged. ``close_door`` refuses every connection, as a host without a server does.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import socket
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

HOPS = {"connection", "keep-alive", "transfer-encoding", "expect", "content-length", "date", "server"}
SLICE_BYTES = 16 * 1024
Kind = Literal[
    "answer",  # the status and code given, in the server's place
    "reset",  # the connection is reset before the server hears of it
    "reset-after",  # the server applies it; the answer is lost
    "stall",  # nothing comes for ``seconds``, then the connection is reset
    "stall-in-body",  # half of the answer's body, then nothing for ``seconds``
    "truncate",  # half of the answer's body, then the end
    "flip",  # one byte of the answer's body is another
    "flip-up",  # one byte of what is put is another
    "slow",  # the answer's body comes at ``rate`` bytes a second
    "unconditional",  # the server never sees If-None-Match
    "pass",  # nothing, but for what ``then`` does
]


@dataclass(frozen=True)
class Asked:
    """One request. ``verb`` is our store client's word for the call; ``key`` the object's, or the prefix of a list."""

    verb: str
    key: str
    method: str
    path: str
    access_key: str


@dataclass
class Fault:
    """What befalls the next ``times`` requests of a verb and key (a piece of it) after ``skip`` of them went through.

    ``then`` is called when one is met, before anything of it is carried out; ``after`` once the server has answered,
    before the client hears of it.
    """

    kind: Kind
    verb: str = ""
    key: str = ""
    times: float = 1
    skip: int = 0
    status: int = 503
    code: str = "SlowDown"
    seconds: float = 0.0
    rate: float = 0.0
    access_key: str = ""
    then: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None
    met: list[Asked] = field(default_factory=list)
    happened: threading.Event = field(default_factory=threading.Event)

    def takes(self, asked: Asked) -> bool:
        """Whether this fault befalls the request; counts it."""
        alike = self.verb in ("", asked.verb) and self.key in asked.key
        if not alike or self.access_key not in ("", asked.access_key):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if len(self.met) >= self.times:
            return False
        self.met.append(asked)
        return True


class Proxy:
    """Listens at the server's host on a port of its own, which it keeps while its door is closed."""

    def __init__(self, host: str, upstream_port: int, credentials: tuple[str, str]) -> None:
        self.host, self.upstream_port, self.credentials = host, upstream_port, Credentials(*credentials)
        self.faults: list[Fault] = []
        self.seen: list[tuple[Asked, int]] = []
        self.live: set[socket.socket] = set()
        self.lock = threading.RLock()
        self._server: http.server.ThreadingHTTPServer | None = None
        self.port = 0
        self.open_door()

    @property
    def url(self) -> str:
        """The endpoint for whoever is to meet the faults."""
        return f"http://{self.host}:{self.port}"

    def add(self, fault: Fault) -> Fault:
        """Have a fault befall what comes; the first that fits is taken."""
        with self.lock:
            self.faults.append(fault)
        return fault

    def clear(self) -> None:
        """Take every fault back."""
        with self.lock:
            self.faults.clear()

    def fault_for(self, asked: Asked) -> Fault | None:
        """Return what befalls a request, or none."""
        with self.lock:
            return next((fault for fault in self.faults if fault.takes(asked)), None)

    def open_door(self) -> None:
        """Listen again, on the same port."""
        if self._server is None:
            self._server = _Server((self.host, self.port), _Handler, self)
            self.port = self._server.server_port
            threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close_door(self) -> None:
        """Refuse new connections and reset the ones that are there."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        with self.lock:
            living = list(self.live)
        for one in living:
            reset(one)

    def count(self, verb: str, key: str = "", status: int | None = None) -> int:
        """Return how many requests of this kind were answered through us."""
        with self.lock:
            seen = [(asked, answer) for asked, answer in self.seen if asked.verb == verb and key in asked.key]
        return sum(1 for _, answer in seen if status in (None, answer))


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: Any, proxy: Proxy) -> None:
        super().__init__(address, handler)
        self.proxy = proxy

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client or server that went away is what this is for."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.proxy = self.server.proxy
        with self.proxy.lock:
            self.proxy.live.add(self.connection)

    def finish(self) -> None:
        with self.proxy.lock:
            self.proxy.live.discard(self.connection)
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def log_message(self, *_: object) -> None:
        """Say nothing: the tests' output is the report."""

    def one(self) -> None:
        """Serve one request with what befalls it."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = _asked(self.command, self.path, self.headers)
        fault = self.proxy.fault_for(asked) or Fault("pass")
        fault.then()
        fault.happened.set()
        try:
            self.carry_out(fault, asked, body)
        except (OSError, http.client.HTTPException):
            # The server is gone: to the client that is a connection that breaks.
            self.hang_up()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = one

    def carry_out(self, fault: Fault, asked: Asked, body: bytes) -> None:
        if fault.kind == "answer":
            self.send(asked, fault.status, [], _error(fault.code) if self.command != "HEAD" else b"")
            return
        if fault.kind in ("reset", "stall"):
            time.sleep(fault.seconds)
            self.hang_up()
            return
        status, headers, data = self.ask(fault, body)
        fault.after()
        if fault.kind == "reset-after":
            self.hang_up()
            return
        self.send(asked, status, headers, data, fault)

    def ask(self, fault: Fault, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """Return what the server answers."""
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOPS}
        if fault.kind == "unconditional":
            headers = self.without_condition(headers, body)
        if fault.kind == "flip-up":
            body = flipped(body)
        upstream = http.client.HTTPConnection(self.proxy.host, self.proxy.upstream_port, timeout=60)
        with contextlib.closing(upstream):
            upstream.request(self.command, self.path, body or None, {**headers, "Content-Length": str(len(body))})
            answer = upstream.getresponse()
            return answer.status, answer.getheaders(), answer.read()

    def without_condition(self, headers: dict[str, str], body: bytes) -> dict[str, str]:
        """Leave If-None-Match out and sign anew: the condition is part of what was signed."""
        left_out = {"if-none-match", "authorization", "x-amz-date", "x-amz-content-sha256"}
        kept = {name: value for name, value in headers.items() if name.lower() not in left_out}
        request = AWSRequest(self.command, f"http://{self.headers['Host']}{self.path}", headers=kept, data=body)
        S3SigV4Auth(self.proxy.credentials, "s3", "us-east-1").add_auth(request)
        return dict(request.headers.items())

    def send(
        self, asked: Asked, status: int, headers: list[tuple[str, str]], data: bytes, fault: Fault | None = None
    ) -> None:
        kind = fault.kind if fault else "pass"
        with self.proxy.lock:
            self.proxy.seen.append((asked, status))
        self.send_response_only(status)
        lengths = [value for name, value in headers if name.lower() == "content-length"]
        for name, value in headers:
            if name.lower() not in HOPS:
                self.send_header(name, value)
        self.send_header("Content-Length", lengths[0] if self.command == "HEAD" and lengths else str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.send_body(kind, fault, flipped(data) if kind == "flip" else data)

    def send_body(self, kind: str, fault: Fault | None, data: bytes) -> None:
        if kind in ("truncate", "stall-in-body") and data:
            self.wfile.write(data[: len(data) // 2])
            time.sleep(fault.seconds if fault else 0.0)
            self.hang_up()
        elif kind == "slow" and fault:
            for piece in pieces(data):
                self.wfile.write(piece)
                time.sleep(len(piece) / fault.rate)
        else:
            self.wfile.write(data)

    def hang_up(self) -> None:
        self.close_connection = True
        reset(self.connection)


def reset(connection: socket.socket) -> None:
    """End a connection as a dying process does: nothing that is under way arrives."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(connection.detach())


def flipped(data: bytes) -> bytes:
    """Return the bytes with one bit in their middle turned."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :] if data else data


def pieces(data: bytes) -> Iterator[bytes]:
    """Yield slices of what is sent slowly."""
    for start in range(0, len(data), SLICE_BYTES):
        yield data[start : start + SLICE_BYTES]


def _error(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>by the proxy</Message></Error>".encode()


def _asked(method: str, path: str, headers: Any) -> Asked:
    place, _, query = path.partition("?")
    parameters = urllib.parse.parse_qs(query, keep_blank_values=True)
    key = urllib.parse.unquote(place).lstrip("/").partition("/")[2]
    _, _, credential = headers.get("Authorization", "").partition("Credential=")
    verb = _verb(method, key, set(parameters))
    return Asked(verb, key or "".join(parameters.get("prefix", [])), method, path, credential.partition("/")[0])


def _verb(method: str, key: str, names: set[str]) -> str:
    """Name the call of S3 as the tests do."""
    if method == "PUT":
        return "part" if "partNumber" in names else "put"
    if method == "POST":
        return "begin" if "uploads" in names else "complete"
    if method == "DELETE":
        return "abort" if "uploadId" in names else "delete"
    if method == "GET" and not key:
        return "uploads" if "uploads" in names else "list"
    return method.lower()
