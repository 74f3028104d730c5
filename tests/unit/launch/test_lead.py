import pytest
from rundir import rank_did, saved

from steelrail.artifacts.trainer import RunFolder
from steelrail.errors import ConfigError
from steelrail.launch.lead import check_lead, flush_seconds, lead_seconds, needed_seconds


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def test_without_a_measured_save_the_configured_lead_holds(demo, folder):
    assert needed_seconds(folder, 1) == 0.0
    assert lead_seconds(demo, folder, 1) == demo.slurm.lead_seconds == 60
    assert flush_seconds(demo, folder, 1) == 30.0
    check_lead(demo, folder)


def test_ranks_are_told_as_early_as_saves_need_to_reach_the_store(demo, folder):
    saved(folder, 1, 100.0, 90.0, 110.0)
    assert lead_seconds(demo, folder, 1) == 1.25 * 100.0 + 45.0
    assert flush_seconds(demo, folder, 1) == 125.0


def test_the_newest_attempt_with_a_save_counts_and_a_store_that_was_away_once_does_not(demo, folder):
    saved(folder, 1, 500.0)
    saved(folder, 2, 4.0, 4.0, 3600.0)
    rank_did(folder, 3, [1, 2])
    assert needed_seconds(folder, 4) == 2 * 5.0
    assert lead_seconds(demo, folder, 3) == 60


def test_the_shortest_lead_suffices_for_saves_that_take_moments(demo, folder, change):
    saved(folder, 1, 0.3)
    check_lead(change(demo, "slurm", lead_seconds=30), folder)


def test_a_lead_that_saves_are_known_to_outlast_is_refused_before_anything_is_submitted(demo, folder, change):
    saved(folder, 1, 100.0)
    with pytest.raises(ConfigError, match=r"slurm.lead_seconds must be at least 170 .*, is 60 .*: raise it"):
        check_lead(demo, folder)
    check_lead(change(demo, "slurm", lead_seconds=170), folder)
    check_lead(change(demo, "slurm", executor="local"), folder)
