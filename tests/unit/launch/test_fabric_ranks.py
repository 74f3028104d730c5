"""The batch host's part with real processes: two ranks whose measuring is put in their place by the test."""

import logging
import os
import sys
from textwrap import dedent

import pytest

from steelrail.fabric.folder import JobFolder
from steelrail.launch import fabric_ranks

# What stands in for measuring: the rest of a rank (files, stacks, leaving) is the real one.
RANK = """
import sys, time, types
from steelrail.errors import FabricError
from steelrail.launch import node

def measure(run, place, at, folder, progress):
    first = folder.root.name == "try-1"
{body}
    if place.rank == 0:
        folder.report.write_text("there")

sys.modules["steelrail.fabric.rank_measure"] = types.SimpleNamespace(measure=measure)
sys.exit(node.main(sys.argv[sys.argv.index("-m") + 1 :]))
"""


@pytest.fixture
def run_job(here, tmp_path, monkeypatch):
    """Return a function that runs a job whose ranks do ``body``, with tries of ``seconds``."""
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")
    monkeypatch.setattr("steelrail.log.configure", lambda: None)  # it would take caplog's handler away
    job = JobFolder(tmp_path / "job")
    job.root.mkdir(mode=0o700)
    shape = here.shape.model_copy(update={"nodes": 1})
    job.run_file.write_text(here.model_copy(update={"shape": shape}).model_dump_json())

    def run(body, seconds=60.0):
        script, python = tmp_path / "rank.py", tmp_path / "python"
        script.write_text(RANK.format(body="".join(f"    {line}\n" for line in dedent(body).splitlines())))
        python.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
        python.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(python))
        monkeypatch.setattr(fabric_ranks, "try_seconds", lambda run: seconds)
        before = os.umask(0o077)
        try:
            return fabric_ranks.run_ranks(str(job.root)), job
        finally:
            os.umask(before)

    return run


HANG = """
with progress.part("meet"):
    if first and place.rank == 1:
        time.sleep(3600)
with progress.part("pairs"):
    if first:
        time.sleep(3600)
"""


def test_ranks_that_hang_are_ended_told_apart_and_started_once_more(run_job, caplog):
    code, job = run_job(HANG, seconds=4.0)
    first, second = job.tries()
    assert (code, second.report.exists(), first.report.exists()) == (0, True, False)
    (said,) = [record.getMessage() for record in caplog.records if "left no report" in record.getMessage()]
    assert "rank 0 was in pairs; rank 1 on " in said and "did not get there: meet" in said


def test_the_stacks_of_every_rank_of_an_ended_try_stay(run_job):
    _, job = run_job(HANG, seconds=4.0)
    stacks = [job.tries()[0].stacks(rank).read_text() for rank in (0, 1)]
    assert all("in measure" in text and "most recent call first" in text for text in stacks)
    assert job.tries()[0].log.exists()


def test_ranks_that_lost_each_other_are_started_once_more(run_job):
    code, job = run_job("if first: raise RuntimeError('connection closed by peer')")
    assert (code, len(job.tries()), job.tries()[1].report.exists()) == (0, 2, True)


def test_a_cause_that_stays_ends_the_job_at_once(run_job):
    code, job = run_job("raise FabricError('GPUs must be 2, is 1')")
    assert (code, len(job.tries())) == (1, 1)


def test_no_job_has_more_than_two_tries(run_job, caplog):
    with caplog.at_level(logging.WARNING):
        code, job = run_job("raise RuntimeError('connection closed by peer')")
    assert (code, len(job.tries())) == (1, 2)
    assert sum("left no report" in record.getMessage() for record in caplog.records) == 2


def test_ranks_that_have_said_all_and_do_not_leave_are_not_waited_for(run_job, monkeypatch):
    monkeypatch.setattr(fabric_ranks, "_LEAVE_SECONDS", 1.0)
    code, job = run_job("if place.rank == 1: time.sleep(3600)")
    assert (code, len(job.tries()), job.tries()[0].report.exists()) == (0, 1, True)
