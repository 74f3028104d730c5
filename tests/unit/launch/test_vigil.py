"""Asking ranks to save: until they hear it, and however long Slurm keeps us waiting."""

from types import SimpleNamespace

import pytest

from steelrail.artifacts.trainer import Heartbeat, RunFolder
from steelrail.clients import clock
from steelrail.formats.srun import TaskEnd
from steelrail.launch import vigil
from steelrail.launch.site import Flags
from steelrail.launch.vigil import Seen
from steelrail.launch.watch import Watch


class Ranks:
    def __init__(self):
        self.sent, self.killed, self.ends = 0, False, ()

    def signal(self, name):
        self.sent += 1

    def kill(self):
        self.killed = True

    def task_ends(self):
        return self.ends


@pytest.fixture
def time(monkeypatch):
    """A clock that only the test moves."""
    at = [1000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: at[0])
    monkeypatch.setattr(clock, "now", lambda: at[0])
    return at


def site_of(demo, tmp_path, ends):
    folder = RunFolder(tmp_path)
    (tmp_path / "heartbeats").mkdir()
    return SimpleNamespace(
        folder=folder,
        run=demo,
        flags=Flags(),
        allocation=SimpleNamespace(ends=ends),
        frozen=SimpleNamespace(usd_per_gpu_hour=None),
        accounts=None,
    )


def fresh(time, demo):
    return Seen(Watch(time[0]), demo.slurm.lead_seconds)


def beat(site, rank, progress, at):
    Heartbeat(1, rank, "n", 1, at, progress, 1, "step").write(site.folder.heartbeat(rank))


def test_a_request_that_may_have_got_lost_is_sent_again(demo, tmp_path, time):
    site, ranks, seen = site_of(demo, tmp_path, lambda: None), Ranks(), fresh(time, demo)
    site.folder.stop_request.write_text("{}")
    entry = SimpleNamespace(attempt=1)
    for _ in range(25):
        vigil._look(site, entry, ranks, seen)
        time[0] += 1.0
    assert (3, "stop", False) == (ranks.sent, seen.asked, ranks.killed)


def test_a_slurm_that_answers_late_makes_no_rank_look_hung(demo, tmp_path, time):
    ranks, seen, entry, progress = Ranks(), fresh(time, demo), SimpleNamespace(attempt=1), [0]

    def beats():
        progress[0] += 1
        for rank in range(demo.shape.world_size):
            beat(site, rank, progress[0], time[0])

    def slow():
        time[0] += 90.0
        beats()  # ranks work on meanwhile

    site = site_of(demo, tmp_path, slow)
    for look in range(400):
        vigil._look(site, entry, ranks, seen)
        time[0] += 0.3
        if look % 3 == 0:
            beats()
    assert seen.hang is None and not ranks.killed


def test_ranks_that_outlive_one_that_is_gone_are_ended_after_a_moment_to_say_why(demo, tmp_path, time):
    site, ranks, seen = site_of(demo, tmp_path, lambda: None), Ranks(), fresh(time, demo)
    entry = SimpleNamespace(attempt=1)
    vigil._look(site, entry, ranks, seen)
    ranks.ends = (TaskEnd(3, "n", "Killed", None),)
    for _ in range(6):
        vigil._look(site, entry, ranks, seen)
        assert not ranks.killed
        time[0] += 1.0
    vigil._look(site, entry, ranks, seen)
    assert ranks.killed
