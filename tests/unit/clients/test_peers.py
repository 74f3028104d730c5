"""Files from node to node over real sockets of this host: whole and proved, or said in time why not."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from steelrail.clients import peers
from steelrail.clients.peers import Peer, PeerError, Server, fetch_file, own_address
from steelrail.errors import NodeError

SECRET = b"s" * 32
DATA = bytes(range(256)) * 12_345  # three chunks, the last not whole
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "there").write_bytes(DATA)
    return tmp_path


@pytest.fixture
def peer(folder: Path) -> Iterator[Peer]:
    server = Server(lambda name: folder / name if "/" not in name else None, SECRET)
    yield Peer("node1", "127.0.0.1", server.port)
    server.close()


def fetch(peer: Peer, target: Path, name: str = "there", secret: bytes = SECRET, **known: Any) -> bool:
    known = {"size_bytes": len(DATA), "sha256": DIGEST, "beat": lambda: None, **known}
    return fetch_file(peer, secret, name, target, **known)


def test_a_file_arrives_whole_with_signs_of_life(peer: Peer, folder: Path) -> None:
    beats: list[None] = []
    assert fetch(peer, folder / "here", beat=lambda: beats.append(None))
    assert DATA == (folder / "here").read_bytes()
    assert 4 == len(beats)


def test_many_at_once_are_answered(peer: Peer, folder: Path) -> None:
    results: list[bool] = []
    threads = [threading.Thread(target=lambda n=n: results.append(fetch(peer, folder / f"{n}"))) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [True] * 16 == results


@pytest.mark.parametrize("name", ["missing", "../there", "a/b"])
def test_what_is_not_there_is_no_copy(peer: Peer, folder: Path, name: str) -> None:
    assert not fetch(peer, folder / "here", name)
    assert ["there"] == [path.name for path in folder.iterdir()]


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"x" + data[1:], lambda data: data + b"x"])
def test_a_damaged_copy_is_refused_and_leaves_the_old_file(
    peer: Peer, folder: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "there").write_bytes(damage(DATA))
    (folder / "here").write_bytes(b"old")
    assert not fetch(peer, folder / "here")
    assert b"old" == (folder / "here").read_bytes()
    assert ["here", "there"] == sorted(path.name for path in folder.iterdir())
    assert "copy of there on node1 is missing or damaged" in caplog.text


def test_who_does_not_know_the_secret_gets_nothing(peer: Peer, folder: Path) -> None:
    with pytest.raises(PeerError, match="node node1 must be able to send its file"):
        fetch(peer, folder / "here", secret=b"t" * 32)


@pytest.mark.parametrize("said", [b"\n", b"there\n", b"there " + b"0" * 64 + b"\n", b"there \xff\n", b"\xff" * 4096])
@pytest.mark.filterwarnings("error")
def test_a_request_that_is_not_ours_is_not_answered(peer: Peer, said: bytes) -> None:
    with socket.create_connection((peer.address, peer.port), 5.0) as connection:
        connection.settimeout(5.0)
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):  # it may close before it has read all
            assert b"" == connection.recv(100)


def test_a_peer_that_is_gone_is_said_at_once(peer: Peer, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(PeerError, match="Connection refused"):
        fetch(Peer("node1", "127.0.0.1", port), folder / "here")
    assert time.monotonic() - began < 5


def test_a_closed_server_answers_no_more(folder: Path) -> None:
    server = Server(lambda name: folder / name, SECRET)
    peer = Peer("node1", "127.0.0.1", server.port)
    server.close()
    with pytest.raises(PeerError):
        fetch(peer, folder / "here")


def half(connection: socket.socket) -> None:
    """Promise all and send half."""
    connection.recv(512)
    connection.sendall(peers._SIZE.pack(len(DATA)) + DATA[: len(DATA) // 2])


@pytest.mark.parametrize(
    ("answer", "fault"),
    [(lambda connection: None, "timed out"), (half, "timed out")],
    ids=["says nothing", "stalls"],
)
def test_a_peer_that_stalls_is_given_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch, answer: Callable[[socket.socket], None], fault: str
) -> None:
    monkeypatch.setattr(peers, "STALL_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        held: list[socket.socket] = []

        def listen() -> None:
            connection, _ = listening.accept()
            held.append(connection)
            answer(connection)

        thread = threading.Thread(target=listen)
        thread.start()
        with pytest.raises(PeerError, match=fault):
            fetch(Peer("node1", "127.0.0.1", listening.getsockname()[1]), folder / "here")
        thread.join()
        for connection in held:
            connection.close()
    assert ["there"] == [path.name for path in folder.iterdir()]


def test_a_peer_that_trickles_is_given_up(peer: Peer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 1.0, 1e9])
    monkeypatch.setattr(peers.clock, "monotonic", lambda: next(moments))
    with pytest.raises(PeerError, match="too slow"):
        fetch(peer, folder / "here")


def test_a_fault_of_our_own_disk_is_not_the_peers(peer: Peer, folder: Path) -> None:
    with pytest.raises(NodeError) as caught:
        fetch(peer, folder / "no such folder" / "here")
    assert not isinstance(caught.value, PeerError)


def test_a_node_is_reached_at_the_interface_named_for_gloo() -> None:
    assert "127.0.0.1" == own_address({"GLOO_SOCKET_IFNAME": "lo"})


def test_a_node_is_reached_by_the_route_to_the_first_or_as_the_first_by_its_name() -> None:
    assert "first.invalid" == own_address({"STEELRAIL_MASTER_ADDR": "first.invalid"})
    assert "localhost" == own_address({"GLOO_SOCKET_IFNAME": "nosuch0", "STEELRAIL_MASTER_ADDR": "localhost"})
