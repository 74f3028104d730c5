"""The head's part with the real submitit: only Slurm's own programs are put in their place, as scripts on PATH."""

import json
import logging
import os
import time
from itertools import combinations

import pytest
from rundir import write_inputs

from steelrail.artifacts.fabric import DeviceFact, FabricReport, NodeFact, PairMeasurement
from steelrail.artifacts.files import read_artifact, results_folder
from steelrail.artifacts.jobs import noted_jobs
from steelrail.config.keys import fabric_key
from steelrail.errors import FabricError
from steelrail.fabric.edge import make_report
from steelrail.fabric.facts import Facts
from steelrail.launch import fabric_job, submit
from steelrail.launch.freeze import Frozen, run_folder
from steelrail.launch.inputs import left_out
from steelrail.launch.request import job_comment, job_name

# A job of this cluster is over at once: its ranks left what the test put there for the job of that number.
PROGRAMS = {
    "sbatch": """
        number=$(($(cat "$SLURM_TEST/last") + 1)); echo $number > "$SLURM_TEST/last"
        cp "$1" "$SLURM_TEST/job-$number.sh"
        mkdir "$(dirname "$1")/try-1"; cp "$SLURM_TEST/facts-$number.json" "$(dirname "$1")/try-1/report.json"
        echo "Submitted batch job $number"
    """,
    "scontrol": 'echo "JobId=$4 JobName=x JobState=COMPLETED Restarts=0"',
    "squeue": 'cat "$SLURM_TEST/queue"',
    "sinfo": 'case "$*" in *--Node*) cat "$SLURM_TEST/nodes" ;; *) echo gpu ;; esac',
    "srun": "exit 1",
}
NOW = time.time()
HOSTS = ["node1", "node2", "node3", "node4"]
OTHERS = ["node1", "node2", "node4", "node5"]


def facts(run, hosts, slow=""):
    """What ranks find on sound hosts, one of them perhaps with slow links."""
    device = DeviceFact(index=0, name="cpu", uuid="", memory_bytes=1, matrix_seconds_p50=0.01, matrix_digest="same")
    nodes = [
        NodeFact(host=host, leaf="leaf1", ranks=(number,), devices=(device,), nics=(), versions={"torch": "2.11"})
        for number, host in enumerate(hosts)
    ]
    rates = {pair: 0.01 if slow in pair else 1.0 for pair in combinations(hosts, 2)}
    pairs = [
        PairMeasurement(first=a, second=b, size_bytes=10**6, gb_per_s=rate, seconds_p50=0.1, seconds_p99=0.1)
        for (a, b), rate in rates.items()
    ]
    return Facts(
        run=run.name, key=fabric_key(run), backend="gloo", device="cpu", nodes=tuple(nodes), pairs=tuple(pairs),
        world=(), started=NOW - 31.0, measured=NOW, seconds={},
    )  # fmt: skip


class Cluster:
    """Slurm's programs, and what they are to say."""

    def __init__(self, folder):
        self.folder = folder
        self.say("last", "100\n")
        self.say("queue", "")
        self.say("nodes", "".join(f"node{number}|idle|4|gpu:16\n" for number in range(1, 6)))

    def say(self, name, text):
        (self.folder / name).write_text(text)

    def job_finds(self, number, found):
        self.say(f"facts-{number}.json", found.model_dump_json())

    def scripts(self):
        return [path.read_text() for path in sorted(self.folder.glob("job-*.sh"))]

    def excluded(self):
        """What each job was not to use."""
        lines = [[line for line in text.splitlines() if "--exclude=" in line] for text in self.scripts()]
        return [found[0].partition("=")[2] if found else "" for found in lines]


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    for name in ("programs", "slurm"):
        (tmp_path / name).mkdir()
    for name, text in PROGRAMS.items():
        (tmp_path / "programs" / name).write_text(f"#!/bin/sh\nset -e\n{text}\n")
        (tmp_path / "programs" / name).chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_TEST", str(tmp_path / "slurm"))
    # The door hides Slurm's own variables from these programs, and this one looks like them.
    monkeypatch.setattr("steelrail.clients.slurm._FOREIGN", ("SLURM_JOB",))
    return Cluster(tmp_path / "slurm")


def report_of(run):
    return read_artifact(results_folder(run) / "fabric" / "report.json", FabricReport)


def test_fit_nodes_take_one_job(here, cluster):
    cluster.job_finds(101, facts(here, HOSTS))
    report = fabric_job.fabric(here)
    assert (report.job_id, report.exclude, report.replaces, cluster.excluded()) == ("101", (), "", [""])
    assert report_of(here) == report


def test_an_unfit_node_is_replaced_in_a_second_job_and_left_out_of_training(here, cluster):
    cluster.job_finds(101, facts(here, HOSTS, slow="node3"))
    cluster.job_finds(102, facts(here, OTHERS))
    report = fabric_job.fabric(here)
    assert (report.fit, report.job_id, report.replaces, report.exclude) == (True, "102", "101", ("node3",))
    assert cluster.excluded() == ["", "node3"]
    assert report_of(here) == report
    inputs = write_inputs(here)
    request = submit.make_request(here, inputs, run_folder(here, inputs.key), Frozen("code", "", "", "", None), {})
    assert request.option("exclude") == "node3"


def test_the_log_says_what_was_left_out_why_and_what_it_costs(here, cluster, caplog):
    cluster.job_finds(101, facts(here, HOSTS, slow="node3"))
    cluster.job_finds(102, facts(here, OTHERS))
    with caplog.at_level(logging.WARNING):
        fabric_job.fabric(here)
    why, what = (record.getMessage() for record in caplog.records if "node3" in record.getMessage())
    assert why.startswith("unfit: node3: most of its links are slow")
    assert "leaving out node3, which job 101 found unfit, here and in training" in what
    assert "4 of node[1-2,4-5] (no spare is left" in what and "at most 6.40 GPU-hours, $25." in what


def test_both_jobs_are_on_the_bill(here, cluster):
    cluster.job_finds(101, facts(here, HOSTS, slow="node3"))
    cluster.job_finds(102, facts(here, OTHERS))
    fabric_job.fabric(here)
    assert [job.job_id for job in noted_jobs(results_folder(here))] == ["101", "102"]


def test_without_enough_other_nodes_the_stage_ends_with_the_name(here, cluster, caplog):
    cluster.say("nodes", "".join(f"node{number}|idle|4|gpu:16\n" for number in range(1, 5)) + "node5|down*|4|gpu:16\n")
    cluster.job_finds(101, facts(here, HOSTS, slow="node3"))
    with pytest.raises(FabricError, match=r"leave out node3 \(slurm.exclude: \[node3\]\)"):
        fabric_job.fabric(here)
    assert len(cluster.scripts()) == 1
    assert "not replacing node3: 4 nodes are needed" in caplog.text
    assert left_out(here) == ()


def test_a_second_unfit_node_ends_the_stage_and_all_are_named(here, cluster):
    cluster.job_finds(101, facts(here, HOSTS, slow="node3"))
    cluster.job_finds(102, facts(here, OTHERS, slow="node5"))
    with pytest.raises(FabricError, match=r"slurm.exclude: \[node3, node5\]"):
        fabric_job.fabric(here)
    assert cluster.excluded() == ["", "node3"]


def test_a_driver_that_comes_back_to_the_second_job_knows_it_for_the_second(here, cluster):
    before = make_report(facts(here, HOSTS, slow="node3"), here, "101")
    cluster.say("last", "101\n")
    cluster.job_finds(102, facts(here, OTHERS, slow="node5"))
    results_folder(here).mkdir(parents=True, mode=0o700)
    fabric_job._submit(here, before)
    comment = job_comment(here.name, "fabric", fabric_key(here), results_folder(here))
    cluster.say("queue", f"102|RUNNING|None|{job_name(here.name, 'fabric')}|{comment}\n")
    with pytest.raises(FabricError, match=r"slurm.exclude: \[node3, node5\]"):
        fabric_job.fabric(here)
    assert len(cluster.scripts()) == 1


def test_the_job_keeps_why_it_does_without_nodes(here, cluster):
    cluster.job_finds(101, facts(here, HOSTS, slow="node3"))
    cluster.job_finds(102, facts(here, OTHERS))
    report = fabric_job.fabric(here)
    assert [finding.culprit for finding in report.left_out] == ["node3"]
    folders = [path.parent for path in (results_folder(here) / "fabric" / "jobs").glob("*/before.json")]
    (run_file,) = [json.loads((folder / "run.json").read_text()) for folder in folders]
    assert run_file["slurm"]["exclude"] == ["node3"]


def test_an_unfit_host_of_a_local_run_is_not_replaced(here, change, cluster):
    local = change(here, "slurm", executor="local")
    report = make_report(facts(here, HOSTS, slow="node3"), here, "1")
    assert not fabric_job._can_replace(local, report)


def test_a_verdict_that_names_no_node_is_not_answered_by_another_job(here, cluster):
    report = make_report(facts(here, HOSTS), here, "1").model_copy(update={"fit": False})
    assert not fabric_job._can_replace(here, report)


def test_a_price_book_with_a_fault_keeps_no_node_from_being_replaced(here, change, cluster, caplog):
    unpriced = change(here, "cost", provider="nobody")
    report = make_report(facts(here, HOSTS, slow="node3"), here, "1")
    assert fabric_job._can_replace(unpriced, report)
    assert "the cost is not known" in caplog.text
