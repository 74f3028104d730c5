"""The price book: which row prices a run, and what is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from steelrail.config.load import load_run
from steelrail.config.prices import (
    is_stale,
    load_price_book,
    price_book_digest,
    price_for,
    require_service,
    row_at,
    rows_on,
    storage_on,
    usd_per_gpu_hour,
)
from steelrail.config.schema import Run
from steelrail.errors import ConfigError

HOME = Path(__file__).parents[3]
BOOK = HOME / "config" / "prices"
NOVEMBER = date(2026, 11, 30)

ROW = """
  - provider: acme
    sku: {sku}
    gpu: {gpu}
    gpus: 8
    region: north
    mode: on-demand
    usd_h: {usd_h}
    effective_from: {effective_from}
    read_on: {read_on}
    source: acme.example
    trust: {trust}
"""


def row(**changes: str) -> str:
    plain = {
        "sku": "box",
        "gpu": "h100-sxm",
        "usd_h": '"8.00"',
        "effective_from": "2026-01-01",
        "read_on": "2026-01-02",
        "trust": "high",
    }
    return ROW.format(**plain | changes)


def book(folder: Path, *rows: str) -> Path:
    (folder / "2026-01.yaml").write_text("version: 1\nprices:\n" + "".join(rows))
    return folder


def run_at(folder: Path, sku: str = "box", gpu: str = "h100-sxm", **cost: object) -> Run:
    run = load_run(HOME / "config" / "demo.yaml")
    paid = {"price_book": str(folder), "provider": "acme", "sku": sku, **cost}
    return run.model_copy(
        update={"cost": run.cost.model_copy(update=paid), "shape": run.shape.model_copy(update={"gpu": gpu})}
    )


def seconds(day: str) -> float:
    return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()


def usd_on(folder: Path, day: str) -> str:
    return price_for(run_at(folder), seconds(day)).usd_h


def test_the_shipped_book_is_valid_and_prices_the_default_provider() -> None:
    found = row_at(load_price_book(BOOK), "runpod", "h100-sxm-secure", NOVEMBER)
    assert (found.usd_h, found.read_on, found.trust) == ("3.99", date(2026, 11, 9), "high")


@pytest.mark.parametrize(("day", "usd"), [("2026-08-20", "3.29"), ("2026-10-10", "3.49"), ("2026-10-19", "3.99")])
def test_the_shipped_book_prices_an_old_run_at_its_own_day(day: str, usd: str) -> None:
    assert row_at(load_price_book(BOOK), "runpod", "h100-sxm-secure", date.fromisoformat(day)).usd_h == usd


def test_the_old_rate_of_a_cloud_prices_only_old_runs() -> None:
    shipped = load_price_book(BOOK)
    old, new = (row_at(shipped, "aws", "p5.48xlarge", day) for day in (date(2025, 5, 31), NOVEMBER))
    assert (usd_per_gpu_hour(old), usd_per_gpu_hour(new)) == (Decimal("12.29"), Decimal("6.88"))


def test_the_newest_row_in_force_is_chosen(tmp_path: Path) -> None:
    rows = [row(usd_h='"8.00"'), row(usd_h='"9.00"', effective_from="2026-06-01", read_on="2026-06-02")]
    folder = book(tmp_path, *reversed(rows))
    assert [usd_on(folder, day) for day in ("2026-05-31", "2026-06-01")] == ["8.00", "9.00"]


def test_of_two_readings_of_one_rate_the_later_counts(tmp_path: Path) -> None:
    folder = book(tmp_path, row(read_on="2026-03-01"), row(read_on="2026-02-01"))
    assert price_for(run_at(folder), seconds("2026-04-01")).read_on == date(2026, 3, 1)


def test_the_day_is_that_of_utc(tmp_path: Path) -> None:
    folder = book(tmp_path, row(), row(usd_h='"9.00"', effective_from="2026-06-01", read_on="2026-06-02"))
    assert usd_on(folder, "2026-05-31T23:59:59") == "8.00"


def test_low_trust_is_never_chosen(tmp_path: Path) -> None:
    folder = book(tmp_path, row(), row(usd_h='"1.00"', effective_from="2026-06-01", read_on="2026-06-02", trust="low"))
    assert usd_on(folder, "2026-07-01") == "8.00"


def test_low_trust_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be of medium or high trust, is low"):
        usd_on(book(tmp_path, row(trust="low")), "2026-07-01")


def test_a_run_before_the_first_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be in force on 2025-12-31, is known only from 2026-01-01"):
        usd_on(book(tmp_path, row()), "2025-12-31")


def test_a_misspelt_sku_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean runpod h100-sxm-secure\?"):
        row_at(load_price_book(BOOK), "runpod", "h100-sxm-secur", NOVEMBER)


def test_another_gpu_than_the_shape_is_refused(tmp_path: Path) -> None:
    folder = book(tmp_path, row(gpu="h100-pcie"))
    with pytest.raises(ConfigError, match=r"must be a machine with h100-sxm, .* is h100-pcie"):
        price_for(run_at(folder), seconds("2026-02-01"))


def test_a_shape_without_gpu_model_may_pay_for_any(tmp_path: Path) -> None:
    folder = book(tmp_path, row(gpu="h100-pcie"))
    assert price_for(run_at(folder, gpu="cpu"), seconds("2026-02-01")).gpu == "h100-pcie"


def test_a_stale_row_is_marked_and_used_by_default(tmp_path: Path) -> None:
    folder = book(tmp_path, row())
    found = price_for(run_at(folder, max_age_days=90), seconds("2026-04-03"))
    assert (is_stale(found, date(2026, 4, 2), 90), is_stale(found, date(2026, 4, 3), 90)) == (False, True)


def test_a_stale_row_is_refused_where_the_run_file_says_so(tmp_path: Path) -> None:
    folder = book(tmp_path, row())
    with pytest.raises(ConfigError, match="must be read within 90 days, is from 2026-01-02"):
        price_for(run_at(folder, max_age_days=90, allow_stale=False), seconds("2026-04-03"))


def test_a_row_read_after_the_run_is_not_stale(tmp_path: Path) -> None:
    folder = book(tmp_path, row(read_on="2026-09-01"))
    assert price_for(run_at(folder, allow_stale=False), seconds("2026-02-01")).usd_h == "8.00"


def test_dollars_per_gpu_hour_are_exact(tmp_path: Path) -> None:
    folder = book(tmp_path, row(usd_h='"0.30"'))
    assert usd_per_gpu_hour(price_for(run_at(folder), seconds("2026-02-01"))) == Decimal("0.0375")


def test_rows_on_a_day_are_one_a_sku_cheapest_first(tmp_path: Path) -> None:
    later = row(usd_h='"9.00"', effective_from="2026-06-01", read_on="2026-06-02")
    folder = book(
        tmp_path, row(), later, row(sku="small", usd_h='"4.00"'), row(sku="next", effective_from="2027-01-01")
    )
    found = rows_on(load_price_book(folder), date(2026, 7, 1))
    assert [(one.sku, one.usd_h) for one in found] == [("small", "4.00"), ("box", "9.00")]


def test_the_digest_ignores_comments_order_and_file_names(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = book(tmp_path / "a", row(), row(sku="small"))
    (tmp_path / "b" / "2026-02-more.yaml").write_text("# a comment\nversion: 1\nprices:\n" + row(sku="small") + row())
    assert price_book_digest(first) == price_book_digest(tmp_path / "b")


def test_the_digest_changes_with_a_price(tmp_path: Path) -> None:
    before = price_book_digest(book(tmp_path, row()))
    assert price_book_digest(book(tmp_path, row(usd_h='"8.01"'))) != before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (row(usd_h="8.00"), "usd_h must be text, is 8.0"),
        (row(usd_h='"0.00"'), "usd_h must be above 0"),
        (row(usd_h='"-1"'), "usd_h must be"),
        (row(gpu="h100"), "gpu must be 'h100-sxm'"),
        (row(trust="perhaps"), "trust must be 'high'"),
        (row() + "    color: red\n", "color must be"),
        (row() + "    usd_h: '9.00'\n", r"prices.0.usd_h must be given once, is given on lines \d+ and \d+"),
        (row() + row(), "there once a day"),
        (row() + row(gpu="h100-pcie", effective_from="2026-02-01"), "rows of acme box must be all"),
    ],
)
def test_a_bad_row_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_price_book(book(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version: 1\nprices: [\n", "valid YAML"),
        ("version: 2\nprices: []\n", "version 1"),
        ("version: 1\nprice: []\n", "version 1"),
        ("version: 1\nprices: {}\n---\n", "valid YAML"),
        ("version: 1\nprices: {a: 1}\n", "prices must be a list"),
        ("- 1\n", "version 1"),
        ("version: 1\nversion: 1\nprices: []\n", "version must be given once, is given on lines 1 and 2"),
        ("version: 1\nprices: [!!python/object/apply:os.getcwd []]\n", "valid YAML"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "2026-01.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_price_book(tmp_path)


def test_a_folder_without_price_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.yaml").write_text("version: 1\n")
    with pytest.raises(ConfigError, match=r"price book must be a folder with .* files, is empty of them"):
        load_price_book(tmp_path)


STORE = """
  - {{service: s3, region: {region}, usd_gb_month: {usd}, effective_from: {day}, read_on: {day}, source: acme,
     trust: high}}
"""


def test_a_store_has_one_rate_a_region_the_newest_in_force(tmp_path: Path) -> None:
    days = [
        ("a", '"1"', "2026-01-01"),
        ("a", '"2"', "2026-06-01"),
        ("b", '"3"', "2026-02-01"),
        ("a", '"4"', "2026-12-01"),
    ]
    rows = "".join(STORE.format(region=region, usd=usd, day=day) for region, usd, day in days)
    (tmp_path / "2026-01.yaml").write_text(f"version: 1\nstorage:{rows}")
    found = storage_on(load_price_book(tmp_path), date(2026, 11, 1))
    assert {(one.region, one.usd_gb_month) for one in found} == {("a", "2"), ("b", "3")}


def test_a_store_that_the_book_does_not_know_is_refused_with_the_nearest_name() -> None:
    require_service(load_price_book(BOOK), "coreweave-object-hot")
    with pytest.raises(ConfigError, match=r"cost.store_service must be .*did you mean aws-s3-standard"):
        require_service(load_price_book(BOOK), "aws-s3-standart")


def test_a_misspelt_store_is_refused_before_anything_is_spent() -> None:
    run = load_run(HOME / "config" / "llama3-70b-4x16.yaml")
    wrong = run.model_copy(
        update={"cost": run.cost.model_copy(update={"store_service": "s3", "price_book": str(BOOK)})}
    )
    with pytest.raises(ConfigError, match=r"cost\.store_service"):
        price_for(wrong, datetime(2026, 11, 30, tzinfo=UTC).timestamp())
