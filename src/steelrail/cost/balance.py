"""Money: every segment at its price, every micro-dollar to a piece of its time. Pure, integers, sums exact.

A segment costs units x seconds x price, rounded once. Its categories get that by largest remainder, and so do the
pieces within a category; so pieces sum to categories, categories to segments and segments to the total, nothing over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal

from steelrail.artifacts.cost import BilledSegment, CategoryCost
from steelrail.cost.pieces import Cut, Piece
from steelrail.cost.segments import Segment
from steelrail.errors import AccountingError, must
from steelrail.units import MICRO_USD_PER_USD, SECONDS_PER_HOUR, largest_remainder

MAX_UNATTRIBUTED = 0.01
# Seconds of a segment and of its pieces are sums of floats of about 10^9 s: they agree to a microsecond a piece.
TOLERANCE_SECONDS = 0.01


@dataclass(frozen=True)
class Rates:
    """Dollars per GPU-hour, and per CPU-hour where a segment has no GPU."""

    usd_per_gpu_hour: Decimal
    usd_per_cpu_hour: Decimal

    def of(self, segment: Segment) -> Decimal:
        """Return dollars per unit and hour."""
        return self.usd_per_gpu_hour if segment.gpus else self.usd_per_cpu_hour


@dataclass(frozen=True)
class BilledPiece:
    """One piece and what it cost: a row of the ledger."""

    segment: Segment
    piece: Piece
    gpu_seconds: float
    micro_usd: int


def charge(units: int, seconds: float, usd_per_unit_hour: Decimal) -> int:
    """Return micro-dollars for ``units`` (GPUs or CPUs) over ``seconds``, rounded half to even once."""
    exact = units * Decimal(seconds) * usd_per_unit_hour * MICRO_USD_PER_USD / SECONDS_PER_HOUR
    return int(exact.quantize(Decimal(1), rounding=ROUND_HALF_EVEN))


def bill(cuts: Iterable[Cut], rates: Rates) -> tuple[BilledPiece, ...]:
    """Return every piece with its money. Raises ``AccountingError`` when a segment's pieces do not cover it."""
    return tuple(piece for cut in cuts for piece in _bill_segment(cut, rates))


def _bill_segment(cut: Cut, rates: Rates) -> list[BilledPiece]:
    _check_covered(cut)
    segment, total = cut.segment, charge(cut.segment.units, cut.segment.seconds, rates.of(cut.segment))
    kinds: dict[str, list[Piece]] = defaultdict(list)
    for piece in cut.pieces:
        kinds[piece.category].append(piece)
    money = largest_remainder(total, {name: sum(piece.part for piece in own) for name, own in kinds.items()})
    return [billed for name, own in kinds.items() for billed in _bill_category(segment, own, money[name])]


def _bill_category(segment: Segment, pieces: Sequence[Piece], total: int) -> list[BilledPiece]:
    money = largest_remainder(total, {str(number): piece.part for number, piece in enumerate(pieces)})
    return [
        BilledPiece(segment, piece, segment.gpus * piece.part, money[str(number)])
        for number, piece in enumerate(pieces)
    ]


def _check_covered(cut: Cut) -> None:
    covered = sum(piece.part for piece in cut.pieces)
    if abs(covered - cut.segment.seconds) > TOLERANCE_SECONDS:
        name = f"segment {cut.segment.segment} of job {cut.segment.job_id}"
        raise AccountingError(
            must(
                name,
                f"covered for {cut.segment.seconds:.3f} s",
                f"for {covered:.3f} s",
                "cost",
                "report this fault of ours",
            )
        )


def categories(pieces: Iterable[BilledPiece]) -> dict[str, CategoryCost]:
    """Return time and money by category, dearest first."""
    seconds: dict[str, float] = defaultdict(float)
    money: dict[str, int] = defaultdict(int)
    for one in pieces:
        seconds[one.piece.category] += one.gpu_seconds
        money[one.piece.category] += one.micro_usd
    order = sorted(money, key=lambda name: (-money[name], -seconds[name], name))
    return {name: CategoryCost(gpu_seconds=seconds[name], micro_usd=money[name]) for name in order}


def billed_segments(paid: Sequence[Segment], pieces: Sequence[BilledPiece]) -> tuple[BilledSegment, ...]:
    """Return every segment with what it cost and for what."""
    own: Mapping[int, list[BilledPiece]] = {id(one): [] for one in paid}
    for piece in pieces:
        own[id(piece.segment)].append(piece)
    return tuple(_billed(one, own[id(one)]) for one in paid)


def _billed(segment: Segment, pieces: Sequence[BilledPiece]) -> BilledSegment:
    return BilledSegment(
        stage=segment.stage,
        job_id=segment.job_id,
        segment=segment.segment,
        state=segment.state,
        nodes=segment.nodes,
        start=segment.start,
        end=segment.end,
        gpus=segment.gpus,
        cpus=segment.cpus,
        gpu_seconds=segment.gpus * segment.seconds,
        micro_usd=sum(piece.micro_usd for piece in pieces),
        categories=categories(pieces),
    )


def unattributed_share(pieces: Iterable[BilledPiece]) -> float:
    """Return the share of paid time (in money) that nothing explains."""
    return _share(pieces, "unattributed")


def goodput(cuts: Iterable[Cut]) -> float:
    """Return the share of paid accelerator time (fabric and train segments) that was productive."""
    paid = [cut for cut in cuts if cut.segment.stage != "shards"]
    total = sum(cut.segment.units * cut.segment.seconds for cut in paid)
    good = sum(cut.segment.units * piece.part for cut in paid for piece in cut.pieces if piece.category == "productive")
    return good / total if total else 0.0


def per_million_tokens(total_micro_usd: int, tokens: int) -> int | None:
    """Return micro-dollars per million tokens trained; none when there are none."""
    return round(total_micro_usd * 1_000_000 / tokens) if tokens else None


def _share(pieces: Iterable[BilledPiece], category: str) -> float:
    own = list(pieces)
    total = sum(one.micro_usd for one in own)
    return sum(one.micro_usd for one in own if one.piece.category == category) / total if total else 0.0


def check_balanced(pieces: Sequence[BilledPiece]) -> None:
    """Raise ``AccountingError`` when more than one per cent of the bill is unattributed."""
    share = unattributed_share(pieces)
    if share > MAX_UNATTRIBUTED:
        worst = max((one for one in pieces if one.piece.category == "unattributed"), key=lambda one: one.micro_usd)
        where = f"most in job {worst.segment.job_id}, attempt {worst.piece.attempt}, {worst.piece.host}"
        do = "see the events of that attempt; the bill so far is in summary-unbalanced.json"
        raise AccountingError(
            must("unattributed share of the bill", f"at most {MAX_UNATTRIBUTED:.0%}", f"{share:.2%}", where, do)
        )
