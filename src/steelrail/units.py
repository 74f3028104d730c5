"""Units: money in integer micro-dollars, bytes in decimal GB, time in seconds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction

GB = 10**9
GIB = 2**30
MICRO_USD_PER_USD = 10**6
SECONDS_PER_HOUR = 3600


def micro_usd(usd: str | Decimal) -> int:
    """Return dollars as integer micro-dollars, rounded half to even."""
    return int((Decimal(usd) * MICRO_USD_PER_USD).quantize(Decimal(1), rounding=ROUND_HALF_EVEN))


def show_usd(amount_micro_usd: int) -> str:
    """Return micro-dollars as a reader's dollars: ``$1,234.56``; four decimals below one dollar."""
    dollars = Decimal(amount_micro_usd) / MICRO_USD_PER_USD
    return f"${dollars:,.4f}" if abs(dollars) < 1 else f"${dollars:,.2f}"


def show_seconds(seconds: float) -> str:
    """Return a duration as a reader's text: ``12.3 s``, ``4 min 05 s``, ``3 h 20 min``, ``2 d 3 h``."""
    whole = round(seconds)
    if seconds < 60:
        return f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def show_bytes(size_bytes: float) -> str:
    """Return a size in decimal units: ``1.7 GB`` (GB = 10^9 bytes)."""
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if abs(size_bytes) >= scale:
            return f"{size_bytes / scale:.2f} {unit}"
    return f"{size_bytes:.0f} B"


def largest_remainder(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Split the integer ``total`` in proportion to ``weights`` so that the parts sum to it exactly.

    Units are those of ``total``. Method: largest remainder (Hamilton); ties go to the first name.
    ``weights`` must be non-negative with a positive sum, unless ``total`` is zero.
    """
    if total == 0 or not weights:
        return dict.fromkeys(weights, 0)
    # Fractions: with floats a quota can round up to the next integer, and the parts then exceed the total.
    exact = {name: Fraction(weight) for name, weight in weights.items()}
    weight_sum = sum(exact.values())
    quotas = {name: total * weight / weight_sum for name, weight in exact.items()}
    parts = {name: int(quota) for name, quota in quotas.items()}
    order = sorted(quotas, key=lambda name: parts[name] - quotas[name])
    for name in order[: total - sum(parts.values())]:
        parts[name] += 1
    return parts
