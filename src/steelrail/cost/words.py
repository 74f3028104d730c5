"""Numbers to a reader's words, and what each category of time means. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal

from steelrail.units import SECONDS_PER_HOUR, show_usd

MEANINGS: Mapping[str, str] = {
    "productive": "steps that the final model is made of",
    "communication": "waiting for other GPUs that no computation hid",
    "data_wait": "waiting for the next batch",
    "checkpoint": "steps held up while state was saved",
    "restore": "loading a checkpoint",
    "staging": "bringing data shards to local NVMe",
    "fabric_check": "measuring links and GPUs before training",
    "startup": "processes starting, and gaps between attempts",
    "preprocessing": "text to tokens, on CPU nodes",
    "replayed": "steps done again after a restart",
    "lost": "work that no checkpoint kept",
    "idle": "nodes paid for with nothing to do",
    "unattributed": "time that no event explains",
}


NOTHING = "–"  # noqa: RUF001


def usd(micro_usd: int | None) -> str:
    """Return money, or that it is not known."""
    return "not known" if micro_usd is None else show_usd(micro_usd)


def rate(usd_text: str) -> str:
    """Return dollars per unit with two decimals, or as many more as it has."""
    value = Decimal(usd_text)
    return f"{value:.2f}" if value == round(value, 2) else f"{value.normalize():f}"


def percent(share: float, digits: int = 1) -> str:
    """Return a share as a percentage."""
    return f"{share:.{digits}%}"


def cents(share: float) -> str:
    """Return a share of a dollar: ``71 cents``; ``less than a cent``."""
    whole = round(share * 100)
    return "less than a cent" if whole == 0 else f"{whole} cent{'s' if whole != 1 else ''}"


def count(number: int) -> str:
    """Return an integer with commas; millions and more in words of three digits."""
    for scale, word in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if number >= scale:
            return f"{number / scale:.3g} {word}"
    return f"{number:,}"


def gpu_hours(gpu_seconds: float) -> str:
    """Return GPU-hours: two decimals below a thousand."""
    hours = gpu_seconds / SECONDS_PER_HOUR
    return f"{hours:,.0f}" if hours >= 1000 else f"{hours:,.2f}"


def against(micro_usd: int, paid_micro_usd: int) -> str:
    """Return how much dearer or cheaper one price is than the paid one: ``+72%``."""
    if not paid_micro_usd:
        return NOTHING
    change = round(100 * (micro_usd / paid_micro_usd - 1))
    return "equal" if change == 0 else f"{change:+d}%"


def span(first: int, last: int | None) -> str:
    """Return a range of steps."""
    return f"{first:,} – {first if last is None else last:,}"  # noqa: RUF001


def clock_time(at: float, seconds: bool = True) -> str:
    """Return Unix seconds as a day and time in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")
