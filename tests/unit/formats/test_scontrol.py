from pathlib import Path

import pytest

from steelrail.formats.scontrol import parse_config, parse_job, parse_nodes, seconds

DATA = Path(__file__).parents[2] / "data" / "slurm"


def test_a_requeued_job_is_read_with_its_restarts_and_exclusions():
    job = parse_job((DATA / "scontrol-job-requeued.txt").read_text())
    assert (job.job_id, job.state, job.reason, job.restarts) == ("15", "PENDING", "BeginTime", 1)
    assert job.excluded == ("node2", "node3")
    assert (job.started, job.nodes, job.batch_host) == (1796041535.0, (), None)
    assert not job.final


def test_equal_signs_in_a_comment_stay_in_the_comment():
    job = parse_job((DATA / "scontrol-job-requeued.txt").read_text())
    assert job.comment == "steelrail run=probe stage=train key=0123456789ab"


def test_text_without_a_job_is_refused():
    with pytest.raises(ValueError, match="must show a job"):
        parse_job("slurm_load_jobs error: Invalid job id specified\n")


def test_a_time_that_slurm_does_not_know_is_none():
    assert parse_job("JobId=7\n   StartTime=Unknown EndTime=Unknown\n").started is None


def test_a_node_that_is_down_is_lost_and_one_at_work_is_not():
    nodes = {node.name: node for node in parse_nodes((DATA / "scontrol-nodes.txt").read_text())}
    assert not nodes["node1"].lost
    assert nodes["node5"].lost
    assert not nodes["node5"].responding


def test_a_node_that_does_not_respond_is_not_lost_yet():
    (node,) = parse_nodes("NodeName=node3 Arch=x86_64\n   State=ALLOCATED+NOT_RESPONDING ThreadsPerCore=1\n")
    assert (node.state, node.responding, node.lost) == ("allocated", False, False)


def test_the_configuration_gives_names_and_values():
    config = parse_config((DATA / "scontrol-config.txt").read_text())
    assert config["AccountingStorageType"] == "accounting_storage/slurmdbd"
    assert seconds(config["KillWait"]) == 10


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30 sec", 30), ("0", 0), ("00:10:00", 600), ("1-00:00:30", 86430), ("10:05", 605), ("UNLIMITED", None)],
)
def test_durations_are_read_in_every_form(text, expected):
    assert seconds(text) == expected
