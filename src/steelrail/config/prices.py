"""The price book: dated rows in a folder of YAML files, and the choice of the row that priced a run on its own day.

History stays in the book: a run of last spring is priced at last spring's rate, however often it has changed since.
A row says what was read, where and when, and how far it can be trusted; rows of low trust are shown, never chosen.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from steelrail.config.keys import digest
from steelrail.config.schema import Line, Run
from steelrail.config.words import actual, expected, place_of, show
from steelrail.config.yaml_files import parse_yaml, read_yaml_text
from steelrail.errors import ConfigError, must

FILE_NAME = re.compile(r"^\d{4}-\d{2}[A-Za-z0-9._-]*\.yaml$")
GPU_OF_SHAPE = {"h100-sxm": "h100-sxm", "h200-sxm": "h200-sxm"}

Usd = Annotated[str, Field(pattern=r"^\d{1,6}(\.\d{1,9})?$", description="Dollars, as a quoted decimal.")]
Word = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,59}$")]
Trust = Literal["high", "medium", "low"]


class _Row(BaseModel):
    """Base of a row: frozen, closed, no guessing of types (an unquoted price is refused: floats lose cents)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    effective_from: date = Field(description="First day on which the price held, or was seen.")
    read_on: date = Field(description="Day on which the source was read.")
    source: Line = Field(min_length=3, description="Where it was read.")
    trust: Trust = Field(description="How far it can be trusted; low is shown and never chosen.")
    note: Line = Field(default="", description="What a reader must know.")


class PriceRow(_Row):
    """One rate of one thing to rent. SXM, PCIe and NVL are different GPUs and never stand for one another."""

    provider: Word = Field(description="Who rents it out.")
    sku: Word = Field(description="What it is called there: one name for one machine, region and mode.")
    gpu: Literal["h100-sxm", "h100-pcie", "h100-nvl", "h200-sxm"] = Field(description="GPU, with its form.")
    gpus: int = Field(ge=1, le=1024, description="GPUs of one instance.")
    region: Line = Field(min_length=1, description="Region of the price.")
    mode: Literal["on-demand", "spot", "reserved", "capacity-block", "community", "average"] = Field(
        description="How it is rented."
    )
    usd_h: Usd = Field(description="Dollars per instance-hour, a quoted decimal.")
    infiniband: Literal["yes", "no", "unknown"] = Field(
        default="unknown", description="Whether InfiniBand is in the price."
    )

    @model_validator(mode="after")
    def _costs_something(self) -> PriceRow:
        if Decimal(self.usd_h) <= 0:
            raise ValueError(f"usd_h must be above 0, is {self.usd_h}: nothing rented is free")
        return self


class StorageRow(_Row):
    """One rate of an object store: GB-months, requests, and what leaving costs, where known (GB = 10^9 bytes)."""

    service: Word = Field(description="Which store.")
    region: Line = Field(min_length=1, description="Region of the price.")
    usd_gb_month: Usd = Field(description="Dollars per GB and month.")
    usd_per_1k_puts: Usd | None = Field(default=None, description="Dollars per 1,000 PUT, COPY, POST or LIST requests.")
    usd_per_1k_gets: Usd | None = Field(default=None, description="Dollars per 1,000 GET requests.")
    usd_gb_egress: Usd | None = Field(default=None, description="Dollars per GB to the Internet, first tier.")


R = TypeVar("R", bound=_Row)


class PriceBook(BaseModel):
    """All rows of a folder, oldest first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prices: tuple[PriceRow, ...]
    storage: tuple[StorageRow, ...]


def load_price_book(folder: str | Path) -> PriceBook:
    """Return the rows of every ``YYYY-MM*.yaml`` in ``folder``. Raises ``ConfigError`` naming file and row."""
    files = {file: _sections(file) for file in _files(Path(folder))}
    prices = [row for file, data in files.items() for row in _rows(file, data, "prices", PriceRow)]
    storage = [row for file, data in files.items() for row in _rows(file, data, "storage", StorageRow)]
    _check_names(prices, folder)
    _check_once(((row.provider, row.sku), row) for row in prices)
    _check_once(((row.service, row.region), row) for row in storage)
    return PriceBook(prices=tuple(sorted(prices, key=_order)), storage=tuple(sorted(storage, key=_order)))


def price_book_digest(folder: str | Path) -> str:
    """Return the hex SHA-256 of the rows in ``folder``: comments, order and file names do not count."""
    return book_digest(load_price_book(folder))


def book_digest(book: PriceBook) -> str:
    """Return the hex SHA-256 of a book's rows."""
    rows = [row.model_dump(mode="json") for row in (*book.prices, *book.storage)]
    return digest(sorted(digest(row) for row in rows))


def day(at: float) -> date:
    """Return the day in UTC of ``at`` (Unix seconds)."""
    return datetime.fromtimestamp(at, UTC).date()


def price_for(run: Run, at: float) -> PriceRow:
    """Return the rate that ``run`` pays at ``at`` (Unix seconds) by its price book; raises as ``price_in`` does."""
    return price_in(load_price_book(run.cost.price_book), run, at)


def price_in(book: PriceBook, run: Run, at: float) -> PriceRow:
    """Return the rate in ``book`` that ``run`` pays at ``at`` (Unix seconds).

    Raises ``ConfigError``: no such provider, SKU or store, none in force, not the shape's GPU, or stale and refused.
    """
    if run.cost.store_service is not None:
        require_service(book, run.cost.store_service)
    row = row_at(book, run.cost.provider, run.cost.sku, day(at))
    wanted = GPU_OF_SHAPE.get(run.shape.gpu)
    if wanted and row.gpu != wanted:
        raise ConfigError(
            must(
                "cost.sku",
                f"a machine with {wanted}, as shape.gpu says",
                row.gpu,
                f"{row.provider} {row.sku}",
                "change one of the two",
            )
        )
    if is_stale(row, day(at), run.cost.max_age_days) and not run.cost.allow_stale:
        what = f"price of {row.provider} {row.sku}"
        limit = f"read within {run.cost.max_age_days} days"
        do = "add a row read since, or set cost.allow_stale: true"
        raise ConfigError(must(what, limit, f"from {row.read_on}", run.cost.price_book, do))
    return row


def row_at(book: PriceBook, provider: str, sku: str, on: date) -> PriceRow:
    """Return the newest row of (provider, sku) in force on a day. Low trust never counts; ``ConfigError`` when none."""
    named = [row for row in book.prices if (row.provider, row.sku) == (provider, sku)]
    if not named:
        raise ConfigError(_unknown(book, provider, sku))
    trusted = [row for row in named if row.trust != "low"]
    if not trusted:
        do = "choose another cost.sku, or add a row read from the provider"
        raise ConfigError(must(f"price of {provider} {sku}", "of medium or high trust", "low", named[-1].source, do))
    in_force = [row for row in trusted if row.effective_from <= on]
    if not in_force:
        known = f"known only from {trusted[0].effective_from}"
        raise ConfigError(
            must(f"price of {provider} {sku}", f"in force on {on}", known, "price book", "add the row of that day")
        )
    return max(in_force, key=_order)


def rows_on(book: PriceBook, on: date) -> tuple[PriceRow, ...]:
    """Return the newest row in force on a day of every (provider, sku), low trust included, cheapest GPU-hour first."""
    newest: dict[tuple[str, str], PriceRow] = {}
    for row in book.prices:
        if row.effective_from <= on:
            newest[row.provider, row.sku] = row
    return tuple(sorted(newest.values(), key=lambda row: (usd_per_gpu_hour(row), row.provider, row.sku)))


def storage_on(book: PriceBook, on: date) -> tuple[StorageRow, ...]:
    """Return the newest row in force on a day of every (service, region)."""
    return tuple({(row.service, row.region): row for row in book.storage if row.effective_from <= on}.values())


def require_service(book: PriceBook, service: str) -> None:
    """Raise ``ConfigError``, naming the nearest, unless the book knows a store of this name."""
    names = sorted({row.service for row in book.storage})
    if service not in names:
        near = difflib.get_close_matches(service, names, n=1, cutoff=0.5)
        do = f"did you mean {near[0]}? Else add a row" if near else f"choose one of {', '.join(names)}, or add a row"
        raise ConfigError(must("cost.store_service", "in the price book", service, "cost", do))


def usd_per_gpu_hour(row: PriceRow) -> Decimal:
    """Return dollars per GPU and hour, exact."""
    return Decimal(row.usd_h) / row.gpus


def is_stale(row: PriceRow | StorageRow, on: date, max_age_days: int) -> bool:
    """Return whether the row was read more than ``max_age_days`` before a day."""
    return (on - row.read_on).days > max_age_days


def _files(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.glob("*.yaml") if FILE_NAME.match(path.name))
    if not files:
        state = "empty of them" if folder.is_dir() else "missing"
        raise ConfigError(
            must(
                "price book",
                "a folder with YYYY-MM.yaml files",
                state,
                folder,
                "set cost.price_book to config/prices, or your own",
            )
        )
    return files


def _rows(path: Path, data: dict[str, Any], section: str, kind: type[R]) -> list[R]:
    rows = data.get(section) or []
    if not isinstance(rows, list):
        raise ConfigError(must(section, "a list of rows", show(rows), path, "begin each row with a dash"))
    return [_typed(row, kind, f"{path}, {section}, row {number}") for number, row in enumerate(rows, 1)]


def _sections(path: Path) -> dict[str, Any]:
    data = parse_yaml(read_yaml_text(path, "price file"), "price file", path)
    if not isinstance(data, dict) or data.get("version") != 1 or set(data) - {"version", "prices", "storage"}:
        what = "version 1 with prices and storage, nothing else"
        raise ConfigError(must("price file", what, _shown(data), path, "mend it"))
    return data


def _typed(row: Any, kind: type[R], where: str) -> R:
    try:
        return kind.model_validate(row)
    except ValidationError as error:
        fault = error.errors()[0]
        place, do = place_of(fault) or "row", "mend it (prices are quoted)"
        if fault["type"] == "value_error":
            raise ConfigError(f"{place} ({where}): {fault['ctx']['error']}") from error
        raise ConfigError(must(place, expected(fault), actual(fault), where, do)) from error


def _check_names(prices: list[PriceRow], folder: str | Path) -> None:
    """One SKU is one machine in one region and mode; else a row of another kind could become its price."""
    meaning: dict[tuple[str, str], tuple[object, ...]] = {}
    for row in prices:
        this = (row.gpu, row.gpus, row.region, row.mode)
        first = meaning.setdefault((row.provider, row.sku), this)
        if first != this:
            raise ConfigError(
                must(
                    f"rows of {row.provider} {row.sku}",
                    f"all {first}",
                    this,
                    folder,
                    "give the other machine, region or mode a SKU of its own",
                )
            )


def _check_once(rows: Iterable[tuple[tuple[str, str], PriceRow | StorageRow]]) -> None:
    seen: set[tuple[object, ...]] = set()
    for name, row in rows:
        mark = (*name, row.effective_from, row.read_on)
        if mark in seen:
            raise ConfigError(
                must(
                    f"row of {' '.join(name)}",
                    "there once a day",
                    f"there twice, read {row.read_on}",
                    "price book",
                    "remove one",
                )
            )
        seen.add(mark)


def _order(row: PriceRow | StorageRow) -> tuple[date, date]:
    return (row.effective_from, row.read_on)


def _unknown(book: PriceBook, provider: str, sku: str) -> str:
    names = sorted({f"{row.provider} {row.sku}" for row in book.prices})
    near = difflib.get_close_matches(f"{provider} {sku}", names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? Else add a row" if near else f"choose one of {', '.join(names)}, or add a row"
    return must("cost.provider and cost.sku", "in the price book", f"{provider} {sku}", "cost", hint)


def _shown(data: Any) -> str:
    return f"{sorted(map(str, data))}"[:80] if isinstance(data, dict) else type(data).__name__
