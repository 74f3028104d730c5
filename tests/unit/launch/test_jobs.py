import os
import socket

from steelrail.artifacts.files import results_folder
from steelrail.artifacts.trainer import RunFolder
from steelrail.clients.holder import Holder
from steelrail.clients.process import start_ticks
from steelrail.launch.jobs import JobLine, add_job, living_local_jobs


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
