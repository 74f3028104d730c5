"""What a run has cost so far."""

from __future__ import annotations

from pathlib import Path

import pytest
import synthetic

from steelrail.config.prices import price_for
from steelrail.cost.spend import over_budget, spent_so_far

DAY = float(synthetic.T0)


def test_an_hour_of_the_whole_allocation(tmp_path: Path) -> None:
    run = synthetic.make_run(tmp_path)
    assert spent_so_far(run, price_for(run, DAY), 3600.0) == 64 * 3_990_000


def test_a_run_without_gpus_pays_for_its_ranks_cpus(tmp_path: Path) -> None:
    run = synthetic.make_run(tmp_path)
    bare = run.model_copy(update={"shape": run.shape.model_copy(update={"gpus_per_node": 0})})
    assert spent_so_far(bare, price_for(run, DAY), 3600.0) == 8 * 8 * 40_000


@pytest.mark.parametrize(("seconds", "over"), [(3599.0, False), (3600.0, True)])
def test_the_budget_is_reached_to_the_micro_dollar(tmp_path: Path, seconds: float, over: bool) -> None:
    run = synthetic.make_run(tmp_path, budget_usd="255.36")
    assert over_budget(run, price_for(run, DAY), seconds) is over


def test_no_budget_is_never_reached(tmp_path: Path) -> None:
    run = synthetic.make_run(tmp_path)
    assert not over_budget(run, price_for(run, DAY), 1e12)
