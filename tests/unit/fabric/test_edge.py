from pathlib import Path

import pytest
from fabric_facts import a_run, all_pairs, some_facts

from steelrail.artifacts.fabric import FabricReport
from steelrail.artifacts.files import read_artifact, write_artifact
from steelrail.config.keys import fabric_key
from steelrail.config.schema import Run
from steelrail.errors import FabricError
from steelrail.fabric.edge import finish, valid_report
from steelrail.fabric.facts import RankError
from steelrail.fabric.folder import JobFolder

HOSTS = [f"node{number}" for number in range(1, 5)]


def run_in(folder: Path) -> Run:
    return a_run().model_copy(update={"results": str(folder / "results")})


def test_a_fit_fabric_leaves_report_and_picture(tmp_path: Path) -> None:
    run, job = run_in(tmp_path), JobFolder(tmp_path / "job")
    write_artifact(job.report, some_facts(run, measured=2e9, key=fabric_key(run)))
    report = finish(run, job.root, "42")
    folder = tmp_path / "results/t/fabric"
    assert read_artifact(folder / "report.json", FabricReport) == report
    assert (report.fit, report.job_id, report.num_leaves, report.provenance.stage) == (True, "42", 1, "fabric")
    assert (folder / "heatmap.svg").stat().st_size > 1000


def test_an_unfit_fabric_keeps_its_report_under_another_name_and_says_what_to_do(tmp_path: Path) -> None:
    run, job = run_in(tmp_path), JobFolder(tmp_path / "job")
    write_artifact(job.report, some_facts(run, pairs=all_pairs(HOSTS, slow_host="node3")))
    with pytest.raises(FabricError, match=r"node3 .*slow.*exclude: \[node3\]"):
        finish(run, job.root, "42")
    folder = tmp_path / "results/t/fabric"
    assert not (folder / "report.json").exists() and valid_report(run) is None
    assert read_artifact(folder / "report-unfit.json", FabricReport).exclude == ("node3",)
    assert (folder / "heatmap.svg").exists()


def test_ranks_that_left_nothing_but_errors_are_quoted_ours_first(tmp_path: Path) -> None:
    job = JobFolder(tmp_path / "job")
    closed = RankError(rank=0, host="node1", kind="RuntimeError", message="closed by peer", doing="pairs")
    absent = RankError(rank=5, host="node3", kind="FabricError", message="GPUs must be 8, is 7", doing="start")
    for fault in (closed, absent):
        write_artifact(job.error(fault.rank), fault)
    with pytest.raises(FabricError, match=r"missing: rank 5 on node3 .*GPUs must be 8.*rank 0"):
        finish(run_in(tmp_path), job.root, "42")


def test_a_job_that_said_nothing_at_all_is_an_error_too(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    with pytest.raises(FabricError, match="no rank said why"):
        finish(run_in(tmp_path), tmp_path / "job", "42")


def test_the_facts_of_another_run_are_refused(tmp_path: Path) -> None:
    run, job = run_in(tmp_path), JobFolder(tmp_path / "job")
    write_artifact(job.report, some_facts(run).model_copy(update={"run": "other"}))
    with pytest.raises(FabricError, match="other"):
        finish(run, job.root, "42")
