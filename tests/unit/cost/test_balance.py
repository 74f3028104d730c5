"""Money: exact sums, whatever the segments and whatever was done in them."""

from __future__ import annotations

import random
from decimal import Decimal

import pytest

from steelrail.cost.balance import (
    BilledPiece,
    Rates,
    bill,
    billed_segments,
    categories,
    charge,
    check_balanced,
    goodput,
    per_million_tokens,
    unattributed_share,
)
from steelrail.cost.pieces import Cut, Piece, cut_job, cut_whole
from steelrail.cost.segments import Segment, Stage
from steelrail.cost.timeline import CATEGORIES
from steelrail.errors import AccountingError

RATES = Rates(Decimal("3.99"), Decimal("0.04"))


def segment(
    seconds: float = 3600.0, gpus: int = 64, cpus: int = 16, stage: Stage = "train", state: str = "COMPLETED"
) -> Segment:
    return Segment(stage, "7", 0, state, ("node1", "node2"), 1000.0, 1000.0 + seconds, gpus, cpus)


def piece(category: str, part: float) -> Piece:
    return Piece(1, 0, "node1", category, part, part)  # type: ignore[arg-type]


def test_a_gpu_segment_costs_gpus_times_hours_times_price() -> None:
    assert charge(64, 3600.0, Decimal("3.99")) == 255_360_000


def test_a_price_with_many_decimals_is_rounded_once() -> None:
    assert charge(1, 1.0, Decimal("2.27125")) == round(2_271_250 / 3600)


def test_a_segment_without_gpus_pays_for_its_cpus() -> None:
    (only,) = bill([cut_whole(segment(gpus=0, cpus=4, stage="shards"), "preprocessing")], RATES)[:1]
    total = sum(one.micro_usd for one in bill([cut_whole(segment(gpus=0, cpus=4), "preprocessing")], RATES))
    assert (total, only.gpu_seconds) == (160_000, 0.0)


def test_a_failed_job_of_a_stage_is_lost() -> None:
    found = [
        categories(bill([cut_job(segment(state=state), "fabric_check")], RATES)) for state in ("COMPLETED", "FAILED")
    ]
    assert [list(one) for one in found] == [["fabric_check"], ["lost"]]


def test_pieces_that_do_not_cover_their_segment_are_a_fault() -> None:
    with pytest.raises(AccountingError, match=r"must be covered for 3600.000 s, is for 3500.000 s"):
        bill([Cut(segment(), [piece("productive", 3500.0)])], RATES)


@pytest.mark.parametrize("seed", range(100))
def test_pieces_sum_to_categories_to_segments_to_the_total(seed: int) -> None:
    chance = random.Random(seed)
    cuts = [random_cut(chance) for _ in range(chance.randrange(1, 12))]
    pieces = bill(cuts, RATES)
    paid = [cut.segment for cut in cuts]
    expected = [charge(one.units, one.seconds, RATES.of(one)) for one in paid]
    assert [one.micro_usd for one in billed_segments(paid, pieces)] == expected
    assert sum(one.micro_usd for one in categories(pieces).values()) == sum(expected)
    assert all(
        sum(kind.micro_usd for kind in one.categories.values()) == one.micro_usd
        for one in billed_segments(paid, pieces)
    )
    assert min(one.micro_usd for one in pieces) >= 0
    hours = sum(one.gpus * one.seconds for one in paid)
    assert sum(one.gpu_seconds for one in pieces) == pytest.approx(hours, rel=1e-9)


def random_cut(chance: random.Random) -> Cut:
    own = segment(
        chance.choice([1.0, 7.0, 3601.0, 86400.0 * 30]), chance.choice([0, 1, 64, 4096]), chance.randrange(1, 512)
    )
    weights = [chance.random() ** 4 for _ in range(chance.randrange(1, 60))]
    parts = [own.seconds * weight / sum(weights) for weight in weights]
    return Cut(own, [piece(chance.choice(CATEGORIES), part) for part in parts])


def test_up_to_one_per_cent_unattributed_is_let_pass() -> None:
    check_balanced(two_kinds(0.0099))


def test_more_than_one_per_cent_unattributed_is_refused_and_says_where() -> None:
    with pytest.raises(AccountingError, match=r"must be at most 1%, is 1.10% \(most in job 7, attempt 1, node1\)"):
        check_balanced(two_kinds(0.011))


def test_the_unattributed_share_is_of_money() -> None:
    assert unattributed_share(two_kinds(0.25)) == pytest.approx(0.25)


def two_kinds(share: float) -> tuple[BilledPiece, ...]:
    return bill([Cut(segment(), [piece("productive", 3600 * (1 - share)), piece("unattributed", 3600 * share)])], RATES)


def test_goodput_counts_fabric_and_training_but_no_cpu_jobs() -> None:
    train = Cut(segment(), [piece("productive", 2700.0), piece("lost", 900.0)])
    others = [
        cut_whole(segment(stage="fabric"), "fabric_check"),
        cut_whole(segment(gpus=0, stage="shards"), "preprocessing"),
    ]
    assert goodput([train, *others]) == 0.375


def test_nothing_paid_has_no_goodput() -> None:
    assert goodput([]) == 0.0


def test_dollars_per_million_tokens() -> None:
    assert (per_million_tokens(41_870_533, 409_600), per_million_tokens(1, 0)) == (102_222_981, None)
