import pytest
from fabric_facts import a_run

from steelrail.config.schema import Run
from steelrail.fabric.tries import END_SECONDS, TRIES, measure_seconds, stacks_seconds, try_seconds, wait_seconds


def lasting(minutes: int) -> Run:
    run = a_run()
    return run.model_copy(update={"slurm": run.slurm.model_copy(update={"fabric_minutes": minutes})})


@pytest.mark.parametrize("minutes", [2, 6, 30, 600])
def test_all_tries_fit_the_jobs_time(minutes: int) -> None:
    assert TRIES * (try_seconds(lasting(minutes)) + END_SECONDS) <= minutes * 60


@pytest.mark.parametrize("minutes", [1, 2, 6, 30, 600])
def test_ranks_give_up_waiting_and_write_stacks_before_their_try_is_over(minutes: int) -> None:
    run = lasting(minutes)
    assert wait_seconds(run) < stacks_seconds(run) < try_seconds(run)


@pytest.mark.parametrize("minutes", [1, 2, 6, 30, 600])
def test_all_measuring_fits_the_time_before_stacks_are_due(minutes: int) -> None:
    assert 3 * measure_seconds(lasting(minutes)) < stacks_seconds(lasting(minutes))
