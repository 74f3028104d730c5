"""The same GPU-hours at other rates."""

from __future__ import annotations

from datetime import date

import synthetic

from steelrail.config.prices import load_price_book, row_at
from steelrail.cost.compare import compare
from steelrail.cost.segments import Segment

BOOK = load_price_book(synthetic.HOME / "config" / "prices")
DAY = date(2026, 11, 30)
HOUR = Segment("train", "7", 0, "COMPLETED", ("node1",), 0.0, 3600.0, 64, 16)
CPUS = Segment("shards", "8", 0, "COMPLETED", ("cpu1",), 0.0, 3600.0, 0, 16)
FOUND = {
    (one.provider, one.sku): one
    for one in compare(BOOK, row_at(BOOK, "runpod", "h100-sxm-secure", DAY), DAY, [HOUR, CPUS], 90)
}


def test_an_hour_of_64_gpus_at_four_clouds() -> None:
    names = [("coreweave", "hgx-h100"), ("aws", "p5.48xlarge"), ("gcp", "a3-highgpu-8g"), ("azure", "nd96isr-h100-v5")]
    assert [FOUND[name].micro_usd for name in names] == [393_920_000, 440_320_000, 702_656_000, 786_560_000]


def test_other_gpus_and_forms_are_no_comparison() -> None:
    assert {("hyperstack", "h100-nvlink"), ("gcp", "a3-ultragpu-8g")} & set(FOUND) == set()


def test_weak_and_stale_rows_are_shown_and_marked() -> None:
    weak, stale = FOUND["voltage-park", "h100-infiniband"], FOUND["hyperstack", "h100-sxm"]
    assert (weak.trust, stale.stale, FOUND["runpod", "h100-sxm-secure"].stale) == ("low", True, False)


def test_cheapest_comes_first() -> None:
    money = [one.micro_usd for one in FOUND.values()]
    assert money == sorted(money)
