from itertools import combinations

import pytest

from steelrail.fabric.schedule import partner, percentile, repeats_within, tournament


@pytest.mark.parametrize("count", range(18))
def test_every_pair_meets_exactly_once(count: int) -> None:
    met = [pair for meetings in tournament(count) for pair in meetings]
    assert sorted(met) == list(combinations(range(count), 2))


@pytest.mark.parametrize("count", [2, 3, 8, 9, 64])
def test_nobody_plays_twice_in_a_round_and_no_round_is_wasted(count: int) -> None:
    rounds = tournament(count)
    assert all(len({player for pair in meetings for player in pair}) == 2 * len(meetings) for meetings in rounds)
    assert len(rounds) == count - 1 + count % 2


def test_partners_find_each_other_and_the_odd_one_rests() -> None:
    for meetings in tournament(5):
        partners = {player: partner(meetings, player) for player in range(5)}
        resting = [player for player, other in partners.items() if other is None]
        assert len(resting) == 1
        assert all(partners[other] == player for player, other in partners.items() if other is not None)


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values[::-1], percent) for percent in (0, 50, 95, 99, 100)] == [1.0, 50.0, 95.0, 99.0, 100.0]


def test_p99_of_few_values_is_the_largest() -> None:
    assert percentile([3.0, 1.0, 2.0], 99) == 3.0


@pytest.mark.parametrize(
    ("once", "repeats", "budget", "expected"),
    [(0.1, 20, 100.0, 20), (1.0, 20, 7.5, 7), (10.0, 20, 1.0, 3), (0.0, 20, 1.0, 20), (10.0, 2, 1.0, 2)],
)
def test_repeats_fit_the_budget_but_are_never_below_three(
    once: float, repeats: int, budget: float, expected: int
) -> None:
    assert repeats_within(once, repeats, budget) == expected
