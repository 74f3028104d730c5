from pathlib import Path

import pytest
from fabric_facts import a_run, all_pairs, some_facts

from steelrail.artifacts.fabric import FabricReport
from steelrail.artifacts.files import read_artifact, write_artifact
from steelrail.config.keys import fabric_key
from steelrail.config.schema import Run
from steelrail.errors import FabricError
from steelrail.fabric.edge import admit, judge_job, make_report
from steelrail.fabric.facts import Facts, RankError
from steelrail.fabric.folder import JobFolder

HOSTS = [f"node{number}" for number in range(1, 5)]


def run_in(folder: Path) -> Run:
    return a_run().model_copy(update={"results": str(folder / "results")})


def a_job(folder: Path, *tries: Facts | None) -> JobFolder:
    """Return a job whose tries left these facts, or nothing."""
    job = JobFolder(folder / "job")
    for facts in tries:
        one = job.next_try()
        one.root.mkdir(parents=True)
        if facts is not None:
            write_artifact(one.report, facts)
    return job


def test_a_fit_fabric_leaves_report_and_picture(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    job = a_job(tmp_path, some_facts(run, measured=2e9, key=fabric_key(run)))
    report = admit(run, judge_job(run, job.root, "42"))
    folder = tmp_path / "results/t/fabric"
    assert read_artifact(folder / "report.json", FabricReport) == report
    assert (report.fit, report.job_id, report.num_leaves, report.provenance.stage) == (True, "42", 1, "fabric")
    assert (report.exclude, report.replaces, report.left_out) == ((), "", ())
    assert (folder / "heatmap.svg").stat().st_size > 1000


def test_an_unfit_fabric_keeps_its_report_under_another_name_and_says_what_to_do(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    job = a_job(tmp_path, some_facts(run, pairs=all_pairs(HOSTS, slow_host="node3")))
    with pytest.raises(FabricError, match=r"node3 .*slow.*exclude: \[node3\]"):
        admit(run, judge_job(run, job.root, "42"))
    folder = tmp_path / "results/t/fabric"
    assert not (folder / "report.json").exists()
    assert read_artifact(folder / "report-unfit.json", FabricReport).exclude == ("node3",)
    assert (folder / "heatmap.svg").exists()


def test_nodes_that_a_job_did_without_stay_excluded_with_the_reason(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    before = make_report(some_facts(run, pairs=all_pairs(HOSTS, slow_host="node3")), run, "42")
    job = a_job(tmp_path, some_facts(run))
    write_artifact(job.before, before)
    report = admit(run, judge_job(run, job.root, "43"))
    assert (report.fit, report.exclude, report.replaces) == (True, ("node3",), "42")
    assert [finding.culprit for finding in report.left_out] == ["node3"]


def test_nodes_unfit_in_two_jobs_are_excluded_together(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    before = make_report(some_facts(run, pairs=all_pairs(HOSTS, slow_host="node3")), run, "42")
    after = make_report(some_facts(run, pairs=all_pairs(HOSTS, slow_host="node1")), run, "43", before)
    assert (after.fit, after.exclude) == (False, ("node3", "node1"))


def test_the_report_of_the_last_try_that_left_one_counts(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    job = a_job(tmp_path, some_facts(run, measured=1.0), some_facts(run, measured=2.0), None)
    assert judge_job(run, job.root, "42").measured == 2.0


def test_ranks_that_left_nothing_but_errors_are_quoted_with_the_tries_folder(tmp_path: Path) -> None:
    job = a_job(tmp_path, None, None)
    last = job.tries()[-1]
    message = "GPUs must be 8, is 7"
    write_artifact(
        last.error(5), RankError(rank=5, host="node3", kind="FabricError", message=message, doing="start", again=False)
    )
    with pytest.raises(FabricError, match=r"missing: rank 5 on node3 .*GPUs must be 8.* \(.*/try-2\): look at"):
        judge_job(run_in(tmp_path), job.root, "42")


def test_a_job_whose_ranks_were_never_started_is_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(FabricError, match="no rank was started"):
        judge_job(run_in(tmp_path), a_job(tmp_path).root, "42")


def test_the_facts_of_another_run_are_refused(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    job = a_job(tmp_path, some_facts(run).model_copy(update={"run": "other"}))
    with pytest.raises(FabricError, match="other"):
        judge_job(run, job.root, "42")
