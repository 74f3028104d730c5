import os
import socket

import pytest

from steelrail.artifacts.files import results_folder
from steelrail.artifacts.trainer import RunFolder
from steelrail.clients.holder import Holder
from steelrail.clients.process import start_ticks
from steelrail.errors import InputError
from steelrail.launch.jobs import JobLine, add_job, living_local_jobs, read_jobs


def job(here, key, job_id, holder):
    folder = RunFolder(results_folder(here) / "train" / key)
    folder.root.mkdir(parents=True, exist_ok=True)
    add_job(folder, JobLine(job_id, 0.0, "", "", "", holder))


def test_only_local_jobs_whose_process_lives_are_told_of_under_whatever_key(here):
    ticks = start_ticks(os.getpid())
    job(here, "aaaa", "1", Holder(socket.gethostname(), os.getpid(), ticks + 1).text())  # another process by now
    job(here, "aaaa", "2", None)  # in Slurm
    job(here, "bbbb", "3", Holder(socket.gethostname(), os.getpid(), ticks).text())
    assert [(folder.root.name, line.job_id) for folder, line in living_local_jobs(here)] == [("bbbb", "3")]


def test_a_run_that_never_trained_has_no_living_job(here):
    assert living_local_jobs(here) == ()


LINE = JobLine("15", 1.0, "code", "config", "environment", None)


def test_jobs_come_back_in_the_order_in_which_they_were_kept(tmp_path):
    folder = RunFolder(tmp_path)
    assert read_jobs(folder) == ()
    for line in (LINE, JobLine("16", 2.0, "code", "config", "environment", "host:1:2", "here")):
        add_job(folder, line)
    assert [(line.job_id, line.local) for line in read_jobs(folder)] == [("15", False), ("16", True)]


@pytest.mark.parametrize("text", ["", "[", "{}x", "5", '[{"job_id": "15"}]', "[5]", '{"job_id": "15"}'])
def test_a_damaged_list_of_jobs_is_named_with_what_to_do(tmp_path, text):
    (tmp_path / "jobs.json").write_text(text)
    said = r"list of jobs must be as it was written, is damaged .*jobs.json\): put it back"
    with pytest.raises(InputError, match=said):
        read_jobs(RunFolder(tmp_path))
