"""The fault matrix of docs/faults.md on real servers and real ranks: servers, runs, and the table at the end."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

# Helpers beside the tests are no package under pytest's importlib mode.
sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))
sys.path.insert(0, str(Path(__file__).parent))

import servers
from dev_cluster import HOME, SCRIPT, Cluster, Project, copy_project, run
from on_slurm import HEAD, OnSlurm, mend
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
        yield made
    finally:
        made.close()


@pytest.fixture(scope="session")
def manifest(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shards manifest of the data that all runs train on, made by the chain's own commands."""
    return make_data(server, tmp_path_factory.mktemp("data") / "run")


def make_data(server: Server, folder: Path) -> Path:
    """Have the data in a server's store; their manifest."""
    case = Case.bare(folder, server, servers.url(server), DATA_PREFIX)
    case.settings["store"]["allow_http"] = True
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


@pytest.fixture(scope="session")
def project() -> Iterator[Project]:
    """The dev cluster, up, and its user's own copy of this project."""
    run([str(SCRIPT), "up"], servers.PROJECT)
    folder = HOME / "tests" / f"project-{uuid.uuid4().hex[:8]}"
    run([str(SCRIPT), "as-user", "mkdir", "--parents", "-m", "0700", str(folder)], servers.PROJECT)
    yield copy_project(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="session", params=["seaweedfs", "ceph"])
def far(request: pytest.FixtureRequest, project: Project) -> Iterator[Server]:
    """A real S3 server of its own, which the hosts of the dev cluster reach."""
    made = servers.make(request.param, HEAD)
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="session")
def far_manifest(far: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shards manifest of the data in that server's store."""
    return make_data(far, tmp_path_factory.mktemp("far") / "run")


@pytest.fixture
def slurm_case(project: Project, far: Server, far_manifest: Path) -> Iterator[OnSlurm]:
    """A run of the test's own on a healthy cluster. No job and no process of it outlives the test."""
    cluster = Cluster(project.folder)
    made = OnSlurm.on(cluster, project, far, far_manifest)
    try:
        yield made
        assert made.leaks() == []
    finally:
        mend(cluster)
        made.kill()


@pytest.fixture(scope="session")
def calm(project: Project, far: Server, far_manifest: Path) -> Curve:
    """Loss and token digest of every step of a run of eight ranks that nothing befell."""
    case = OnSlurm.on(Cluster(project.folder), project, far, far_manifest)
    try:
        done = case.train()
        assert done.code == 0, done.said
        return case.curve()
    finally:
        case.kill()


@pytest.fixture
def shows(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Give the row its figure: ``shows("lost 0 steps, durable again after 3.1 s")``."""

    def told(figure: str) -> None:
        request.node.user_properties.append(("figure", figure))

    return told


TABLE = Table()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "row(number, moment): a row of the fault matrix in docs/faults.md")
    config.addinivalue_line("markers", "quick: part of `make test`")
    os.umask(0o077)


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    for item in items:
        mark = item.get_closest_marker("row")
        assert mark is not None, f"{item.nodeid} must name its row: @pytest.mark.row(number, moment)"
        item.user_properties += [("row", mark.args[0]), ("moment", mark.args[1])]
        # The dev cluster is one; what needs it runs beside what runs on this host alone.
        item.add_marker(pytest.mark.xdist_group("hosts" if "project" in item.fixturenames else "here"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    TABLE.add(report)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    terminalreporter.section("fault matrix")
    for line in TABLE.lines():
        terminalreporter.write_line(line)
    TABLE.keep(Path(__file__).resolve().parents[2] / "bench" / "results" / "faults.json", config.args)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    # After pytest's own last line; of several processes the one that heard all reports says it.
    if not hasattr(config, "workerinput"):
        print(TABLE.verdict())  # noqa: T201
