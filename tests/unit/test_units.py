import random

from steelrail.units import largest_remainder, micro_usd, show_seconds, show_usd


def test_dollars_become_whole_micro_dollars() -> None:
    assert (3_990_000, 1, 0) == (micro_usd("3.99"), micro_usd("0.0000007"), micro_usd("0.0000005"))


def test_parts_sum_to_the_total_exactly() -> None:
    chance = random.Random(1)
    for _ in range(300):
        weights = {
            str(index): chance.random() * chance.choice([0, 1, 1e-9, 1e9]) for index in range(chance.randint(1, 14))
        }
        weights["last"] = 1.0
        total = chance.randrange(10**13)
        parts = largest_remainder(total, weights)
        assert total == sum(parts.values())
        assert all(part >= 0 for part in parts.values())


def test_equal_weights_differ_by_one_micro_dollar_at_most() -> None:
    assert {"a": 4, "b": 3, "c": 3} == largest_remainder(10, {"a": 1.0, "b": 1.0, "c": 1.0})


def test_amounts_read_well() -> None:
    assert ("$1,234.57", "$0.0042", "12.3 s", "4 min 05 s", "3 h 20 min") == (
        show_usd(1_234_567_000),
        show_usd(4_200),
        show_seconds(12.34),
        show_seconds(245),
        show_seconds(12_000),
    )
