"""The ledger as an Arrow table: a row for every piece of paid time; ``micro_usd`` sums to the bill exactly. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from steelrail.cost.balance import BilledPiece

SCHEMA = pa.schema(
    [
        pa.field("stage", pa.string(), nullable=False),
        pa.field("job_id", pa.string(), nullable=False),
        pa.field("segment", pa.int32(), nullable=False),
        pa.field("attempt", pa.int32()),
        pa.field("rank", pa.int32()),
        pa.field("host", pa.string(), nullable=False),
        pa.field("category", pa.string(), nullable=False),
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("gpu_seconds", pa.float64(), nullable=False),
        pa.field("micro_usd", pa.int64(), nullable=False),
    ]
)


def ledger_table(pieces: Sequence[BilledPiece]) -> pa.Table:
    """Return the ledger. ``attempt`` is null between attempts, ``rank`` on a node without one; seconds are a rank's."""
    return pa.Table.from_pylist([_row(one) for one in pieces], schema=SCHEMA)


def _row(one: BilledPiece) -> dict[str, object]:
    return {
        "stage": one.segment.stage,
        "job_id": one.segment.job_id,
        "segment": one.segment.segment,
        "attempt": one.piece.attempt,
        "rank": one.piece.rank,
        "host": one.piece.host,
        "category": one.piece.category,
        "seconds": one.piece.seconds,
        "gpu_seconds": one.gpu_seconds,
        "micro_usd": one.micro_usd,
    }
