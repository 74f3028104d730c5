"""The fault matrix of docs/faults.md on real servers and real ranks: servers, runs, and the table at the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

# Helpers beside the tests are no package under pytest's importlib mode.
sys.path.insert(0, str(Path(__file__).parent))

import servers
from proxy import Proxy
from runs import DATA_PREFIX, NAME, WAIT_SECONDS, Case, Curve, until
from servers import Server
from table import Table

NUM_ROWS = 100  # of the sample: many times what thirty small steps need


@pytest.fixture(scope="session", params=["seaweedfs", "ceph"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A real S3 server, started once for all rows that ask it."""
    made = servers.make(request.param)
    try:
        made.start()
        request.config.stash[TABLE].versions.append(made.version())
        yield made
    finally:
        made.close()


@pytest.fixture(scope="session")
def manifest(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shards manifest of the data that all runs train on, made by the chain's own commands."""
    folder = tmp_path_factory.mktemp("data") / "run"
    case = Case.bare(folder, server, servers.url(server), DATA_PREFIX)
    corpus = folder / "some.parquet"
    pq.write_table(pq.read_table(servers.PROJECT / "data" / "sample.parquet").slice(0, NUM_ROWS), corpus)
    case.settings["corpus"] = {"paths": [str(corpus)]}
    for words in (("corpus",), ("shards", "part", "--part", "0"), ("shards", "gather")):
        done = case.train(*words)
        assert done.code == 0, done.said
    return folder / "results" / NAME / "shards" / "manifest.json"


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """What stands between the test's run and the server."""
    made = Proxy(server.host, server.port, (server.keys.access, server.keys.secret))
    yield made
    made.close_door()


@pytest.fixture
def case(tmp_path: Path, server: Server, proxy: Proxy, manifest: Path) -> Iterator[Case]:
    """A run of the test's own. No process of it outlives the test, and its files hold no secret."""
    made = Case.new(tmp_path / "run", server, proxy.url, manifest)
    try:
        yield made
        assert made.leaks() == []
    finally:
        made.kill()


@pytest.fixture(scope="session")
def undisturbed(server: Server, manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Curve:
    """Loss and token digest of every step of a run that nothing befell."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    case = Case.new(folder, server, servers.url(server), manifest)
    try:
        done = case.train()
        assert done.code == 0, done.said
        return case.curve()
    finally:
        case.kill()


@pytest.fixture(scope="session")
def begun(server: Server, manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A run that lost its host at step 17 or soon after, with checkpoints of steps 5, 10 and 15 in the store."""
    case = Case.new(tmp_path_factory.mktemp("begun") / "run", server, servers.url(server), manifest)
    try:
        case.begin()
        until(lambda: case.attempts() and 15 in case.durable(1) and 17 in case.steps(1), WAIT_SECONDS, "step 17")
    finally:
        case.kill()
    assert [one.split("-")[0] for one in case.committed()] == ["0000000005", "0000000010", "0000000015"]
    return case


@pytest.fixture
def half(begun: Case, proxy: Proxy, tmp_path: Path) -> Iterator[Case]:
    """A copy of that run, on nodes that hold nothing of it: it must be loaded from the store."""
    made = begun.again(tmp_path / "run", proxy.url)
    made.settings["checkpoints"] = {"every_steps": 10}
    made.settings["drills"] = []
    try:
        yield made
        assert made.leaks() == []
    finally:
        made.kill()


@pytest.fixture
def shows(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Give the row its figure: ``shows("lost 0 steps, durable again after 3.1 s")``."""

    def told(figure: str) -> None:
        request.node.user_properties.append(("figure", figure))

    return told


TABLE = pytest.StashKey[Table]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "row(number, moment): a row of the fault matrix in docs/faults.md")
    config.addinivalue_line("markers", "quick: part of `make test`")
    config.stash[TABLE] = Table()
    os.umask(0o077)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        mark = item.get_closest_marker("row")
        assert mark is not None, f"{item.nodeid} must name its row: @pytest.mark.row(number, moment)"
        item.user_properties += [("row", mark.args[0]), ("moment", mark.args[1])]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    item.config.stash[TABLE].add(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    table = config.stash[TABLE]
    terminalreporter.section("fault matrix")
    for line in table.lines():
        terminalreporter.write_line(line)
    table.keep(Path(__file__).resolve().parents[2] / "bench" / "results" / "faults.json", config.args)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    # After pytest's own last line.
    print(config.stash[TABLE].verdict())  # noqa: T201
