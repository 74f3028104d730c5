from pathlib import Path

import pytest

from steelrail.errors import BusyError
from steelrail.formats.squeue import QueueRow
from steelrail.launch.attach import live_job
from steelrail.launch.request import job_comment

FOLDER = Path("/shared/results/demo")
KEY, OTHER_KEY = "0123456789ab", "ba9876543210"


class FakeQueue:
    """Slurm's queue as a list of rows."""

    def __init__(self, *rows):
        self.rows, self.asked = rows, []

    def queue(self, user, name):
        self.asked.append((user, name))
        return self.rows


def row(job_id="15", state="RUNNING", key=KEY, folder=FOLDER, comment=None):
    comment = job_comment("demo", "train", key, folder) if comment is None else comment
    return QueueRow(job_id, state, "None", "steelrail-demo-train", comment)


def find(*rows):
    return live_job(FakeQueue(*rows), "me", "demo", "train", KEY, FOLDER)


def test_an_empty_queue_has_no_job_of_ours():
    assert find() is None


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "REQUEUED", "CONFIGURING", "SUSPENDED"])
def test_a_live_job_of_the_same_key_is_attached_to_in_every_state(state):
    assert find(row(state=state)) == "15"


def test_a_live_job_of_another_key_refuses_a_second_one():
    with pytest.raises(BusyError, match=r"must be of key 0123456789ab, is of key ba9876543210 \(job 15, running\)"):
        find(row(key=OTHER_KEY))


def test_a_live_job_of_the_same_name_in_another_folder_refuses_a_second_one():
    with pytest.raises(BusyError, match="alive for another results folder"):
        find(row(folder=Path("/elsewhere/demo")))


def test_a_foreign_job_of_the_same_name_is_left_alone():
    assert find(row(comment="(null)")) is None


def test_two_live_jobs_of_one_run_are_never_chosen_from():
    with pytest.raises(BusyError, match=r"must be one, is 2 \(15, 16\)"):
        find(row("15"), row("16"))


def test_the_queue_is_asked_for_this_users_jobs_of_this_name():
    queue = FakeQueue()
    live_job(queue, "me", "demo", "fabric", KEY, FOLDER)
    assert queue.asked == [("me", "steelrail-demo-fabric")]
