from itertools import pairwise

import pytest

from steelrail.artifacts.train import Ending
from steelrail.config.schema import Checkpoints
from steelrail.launch.interval import GPU_SECONDS_PER_FAILURE, Rhythm, mtbf, young_daly
from steelrail.launch.ledger import Entry

DAY = 86_400.0


def entry(started, ended=None, ending=None):
    return Entry(1, "15", 0, 0.0, ("node1",), 1, "code", started, ended=ended, ending=ending)


def lost_share(interval, stall, mean):
    """Share of time spent on saves, work done again and failures, for exponential failures (Daly's equation 20)."""
    from math import exp

    return mean * (exp((interval + stall) / mean) - 1) / interval


@pytest.mark.parametrize(("stall", "mean"), [(0.5, 33 * DAY), (10.0, 3600.0), (60.0, 600.0)])
def test_no_other_interval_loses_less(stall, mean):
    best = young_daly(stall, mean)
    lost = [lost_share(best * factor, stall, mean) for factor in (0.5, 0.8, 1.0, 1.25, 2.0)]
    assert lost[2] == min(lost)
    assert all(one > other for one, other in pairwise(lost[:3]))


def test_a_short_stall_gives_youngs_square_root():
    assert young_daly(0.5, 33 * DAY) == pytest.approx((2 * 0.5 * 33 * DAY) ** 0.5, rel=1e-3)


def test_a_save_that_costs_more_than_failures_leave_is_made_once_in_a_failures_time():
    assert young_daly(500.0, 100.0) == 100.0
    assert young_daly(0.0, 100.0) == 0.0


def test_sixty_four_gpus_without_history_fail_once_in_33_days():
    assert mtbf((), 64, 0.0) / DAY == pytest.approx(33, abs=0.1)


def test_each_unplanned_ending_makes_failures_more_frequent_and_a_planned_one_does_not():
    planned = [entry(0, 10, ending) for ending in (Ending.DONE, Ending.WALLTIME, Ending.STOPPED, Ending.REQUEUED)]
    unplanned = [entry(0, 10, ending) for ending in (Ending.NODE_FAILURE, Ending.STALLED, Ending.JOB_ERROR)]
    prior = GPU_SECONDS_PER_FAILURE / 8
    assert mtbf(planned, 8, 99.0) == prior + 40
    assert mtbf([*planned, *unplanned], 8, 99.0) == (prior + 70) / 4


def test_an_attempt_that_runs_counts_its_time_until_now():
    assert mtbf([entry(100.0)], 8, 160.0) == GPU_SECONDS_PER_FAILURE / 8 + 60


def test_many_failures_seen_outweigh_what_others_saw():
    seen = [entry(hour * 3600.0, (hour + 1) * 3600.0, Ending.NODE_FAILURE) for hour in range(2000)]
    assert mtbf(seen, 64, 0.0) == pytest.approx(3600.0 + 33 * DAY / 2000, rel=0.01)


class Moments:
    """A clock by hand, and what a rhythm said."""

    def __init__(self, mean=DAY, **rules):
        self.time, self.said = 0.0, []
        self.rhythm = Rhythm(Checkpoints(**rules), mean, lambda: self.time, self.said.append)

    def first_due(self):
        return next(seconds for seconds in range(10_000) if self._due_after(seconds))

    def _due_after(self, seconds):
        now, self.time = self.time, self.time + seconds
        due, self.time = self.rhythm.due(durable_step=5), now
        return due


def test_the_first_save_comes_as_early_as_allowed():
    assert Moments(min_seconds=30.0).first_due() == 30


def test_the_interval_follows_the_median_of_the_last_stalls_from_the_last_save():
    moments = Moments(min_seconds=1.0)
    for stall in (50.0, 0.5, 0.5, 0.5):
        moments.time += 100.0
        moments.rhythm.saved(5, stall)
    assert moments.first_due() == pytest.approx(young_daly(0.5, DAY), abs=1)


def test_the_interval_is_never_shorter_than_allowed():
    moments = Moments(min_seconds=60.0)
    moments.rhythm.saved(5, 0.0001)
    assert moments.first_due() == 60


def test_no_save_is_asked_for_while_the_one_before_is_on_its_way_to_the_store():
    moments = Moments(min_seconds=1.0)
    moments.rhythm.saved(5, 0.0)
    moments.time += 9999.0
    assert [moments.rhythm.due(durable) for durable in (0, 4, 5, 6)] == [False, False, True, True]


def test_an_interval_is_told_once_and_again_when_it_changes():
    moments = Moments(min_seconds=1.0, every_steps=700)
    for stall in (1.0, 1.0, 1.05, 40.0, 40.0, 40.0):
        moments.rhythm.saved(5, stall)
    assert len(moments.said) >= 2
    assert moments.said[0] == (
        "a save every 6 min 55 s, or 700 steps if that is sooner: one holds training up for 1.000 s, "
        "and a failure comes about once in 1 d 0 h"
    )
    assert "40.000 s" in moments.said[-1]
