"""Where the files of a checkpoint come from: nearest first, each from the store once, and no silence on bad copies."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from steelrail.checkpoints.bring import Read, Sources, bring_from_store, bring_near, require_found, spread
from steelrail.checkpoints.layout import StepId
from steelrail.checkpoints.manifest import CheckpointFile, Manifest
from steelrail.checkpoints.peers import Peers, found
from steelrail.clients.peers import Peer, PeerError
from steelrail.clients.store import MissingObjectError
from steelrail.errors import CheckpointError, NodeError

WHICH = StepId(4, 1)
NAMES = [f"__{rank}_0.distcp" for rank in range(4)]


def content(name: str) -> bytes:
    return name.encode() * (1 + int(name[2]))


def manifest() -> Manifest:
    files = [
        CheckpointFile(
            name=name,
            size_bytes=len(content(name)),
            sha256=hashlib.sha256(content(name)).hexdigest(),
            rank=rank,
            node_rank=rank,
            host=f"node{rank}",
        )
        for rank, name in enumerate(NAMES)
    ]
    fields: dict[str, Any] = {"run": "run", "key": "key", "step": 4, "epoch": 1, "tokens": 0, "world_size": 4}
    fields.update(num_nodes=4, parent_step=None, parent_epoch=None, created=0.0, versions={}, extra={})
    return Manifest(files=tuple(files), **fields)


class Cluster(Peers):
    """Node 1 of four. ``has``: node to what its copy of a file is (none: the node is away)."""

    asked: list[int]

    def fetch(self, node_rank: int, home: Any, which: StepId, file: CheckpointFile) -> bool:
        self.asked.append(node_rank)
        copy = self.has[node_rank]  # type: ignore[attr-defined]
        if copy is None:
            raise PeerError(f"node{node_rank} is away")
        if copy == content(file.name):
            (home.folder(which) / file.name).write_bytes(copy)
            return True
        return False


@pytest.fixture
def sources(tmp_path: Path) -> Any:
    def make(has: dict[int, bytes | None], in_store: bool = False, store: dict[str, bytes] | None = None) -> Sources:
        cluster = Cluster(1, tuple(Peer(f"node{node}", "", 0) for node in range(4)), b"")
        object.__setattr__(cluster, "asked", [])
        object.__setattr__(cluster, "has", has)
        objects = {} if store is None else store

        def get_file(key: str, path: Path) -> int:
            if key not in objects:
                raise MissingObjectError("object must be in the store, is missing")
            return path.write_bytes(objects[key])

        home: Any = SimpleNamespace(
            folder=lambda which: tmp_path / which.folder,
            beat=lambda: None,
            store=SimpleNamespace(get_file=get_file),
            object_key=lambda which, name: name,
        )
        return Sources(home, manifest(), {name: frozenset(has) for name in NAMES}, in_store, cluster)

    return make


def size(name: str) -> int:
    return len(content(name))


def test_own_file_is_read_first(sources: Any) -> None:
    found = sources({2: content(NAMES[1])})
    bring_near(found, [NAMES[1]])
    near = bring_near(found, [NAMES[1]])
    assert (near.read, near.lacking) == (Read(nvme=size(NAMES[1])), ())
    assert found.peers.asked == [2]


def test_the_next_holders_in_the_ring_are_asked_one_after_the_other(
    sources: Any, caplog: pytest.LogCaptureFixture
) -> None:
    found = sources({0: content(NAMES[3]), 2: b"bad", 3: None})
    assert bring_near(found, [NAMES[3]]).read == Read(peer=size(NAMES[3]))
    assert found.peers.asked == [2, 3, 0]
    assert "another source is asked: node3 is away" in caplog.text


def test_damaged_own_file_is_said_and_replaced(sources: Any, caplog: pytest.LogCaptureFixture) -> None:
    found = sources({2: content(NAMES[1])})
    path = found.home.folder(WHICH) / NAMES[1]
    path.parent.mkdir(mode=0o700)
    path.write_bytes(content(NAMES[1])[::-1])
    assert bring_near(found, [NAMES[1]]).read == Read(peer=size(NAMES[1]))
    assert path.read_bytes() == content(NAMES[1])
    assert f"{NAMES[1]} on this node is damaged" in caplog.text


def test_what_no_node_has_whole_is_left_to_the_store(sources: Any) -> None:
    found = sources({0: None, 2: b"bad"}, in_store=True, store={NAMES[0]: content(NAMES[0]), NAMES[1]: b"bad"})
    near = bring_near(found, NAMES[:3])
    assert (near.read, near.lacking) == (Read(), tuple(NAMES[:3]))
    assert bring_from_store(found, [NAMES[0]]) == Read(store=size(NAMES[0]))
    for name, fault in ((NAMES[1], "SHA-256 must be"), (NAMES[2], "is missing")):
        with pytest.raises(CheckpointError, match=fault):
            bring_from_store(found, [name])


def test_bytes_that_changed_on_the_way_from_the_store_are_asked_for_once_more(sources: Any) -> None:
    found = sources({}, in_store=True)
    came = [b"bad", content(NAMES[0])]
    found.home.store.get_file = lambda key, path: path.write_bytes(came.pop(0))
    (found.home.folder(WHICH)).mkdir(mode=0o700, parents=True)
    assert bring_from_store(found, [NAMES[0]]) == Read(store=size(NAMES[0]))


class Alone:
    """The group of node 1's one rank. ``others``: what the other holders find whole."""

    def __init__(self, others: tuple[str, ...] = ()) -> None:
        self.place = SimpleNamespace(node_rank=1, local_rank=0, ranks_per_node=1)
        self._others = list(others)

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def agree(self, work: Any) -> list[Any]:
        return [work(), self._others]

    def each(self, work: Any) -> Any:
        return work()


def test_without_the_store_what_came_whole_from_nobody_is_lost_and_nodes_that_are_away_are_no_evidence(
    sources: Any,
) -> None:
    found = sources({0: b"bad", 2: b"bad"})
    assert (bring_near(found, [NAMES[3]]).lost, found.peers.asked) == ((NAMES[3],), [2, 0, 2, 0])
    with pytest.raises(PeerError, match="node0 is away"):
        bring_near(sources({0: None, 2: b"bad"}), [NAMES[3]])


def test_lost_file_is_evidence_when_its_holders_find_their_copies_bad_too(sources: Any) -> None:
    ranks: Any = Alone(others=(NAMES[2],))
    with pytest.raises(CheckpointError, match=f"file must be whole on some node, is not .*{NAMES[3]}"):
        require_found(sources({0: b"bad", 2: b"bad"}), ranks, NAMES[2:])


def test_bytes_that_change_on_the_way_each_time_are_no_evidence_against_what_lies_on_nvme(sources: Any) -> None:
    ranks: Any = Alone(others=(NAMES[3],))
    with pytest.raises(NodeError, match=f"changed on the way each time .*{NAMES[3]}"):
        require_found(sources({0: b"bad", 2: b"bad"}), ranks, [NAMES[3]])
    require_found(sources({}), ranks, [])


def test_holder_looks_at_its_own_copy_of_a_lost_file(sources: Any) -> None:
    found, ranks = sources({1: b""}), Alone()
    path = found.home.folder(WHICH) / NAMES[3]
    path.parent.mkdir(mode=0o700)
    for copy, fault in ((content(NAMES[3]), NodeError), (content(NAMES[3])[::-1], CheckpointError)):
        path.write_bytes(copy)
        with pytest.raises(fault):
            require_found(found, ranks, [NAMES[3]])


def test_each_file_is_read_from_the_store_by_one_node_and_bytes_are_spread() -> None:
    first, second, third, fourth = NAMES
    assert spread(manifest(), {0: NAMES, 1: NAMES}) == {fourth: 0, third: 1, second: 1, first: 0}
    assert spread(manifest(), {0: [fourth, first], 2: [first]}) == {fourth: 0, first: 2}
    assert spread(manifest(), {}) == {}


def test_the_farthest_source_names_a_restore() -> None:
    assert [one.where for one in (Read(), Read(5), Read(5, 1), Read(5, 1, 1))] == ["nvme", "nvme", "peer", "store"]


def test_only_checkpoint_files_are_served(tmp_path: Path) -> None:
    folder = WHICH.folder
    assert found(tmp_path, f"{folder}/__3_0.distcp") == tmp_path / folder / "__3_0.distcp"
    bad = ["..", "../__3_0.distcp", f"{folder}/local.json", f"{folder}/../x", f"{folder}/a/__3_0.distcp", f"/{folder}"]
    assert [found(tmp_path, name) for name in bad] == [None] * len(bad)
