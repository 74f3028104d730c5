"""Metrics of all attempts, gathered to one Parquet file."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from steelrail.artifacts.files import write_whole
from steelrail.artifacts.reading import parsed, reading
from steelrail.train.context import MetricsRow

SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("loss", pa.float64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("token_digest", pa.int64(), nullable=False),
        pa.field("grad_norm", pa.float64(), nullable=False),
        pa.field("learning_rate", pa.float64(), nullable=False),
        pa.field("step_seconds", pa.float64(), nullable=False),
        pa.field("tokens_per_s", pa.float64(), nullable=False),
        pa.field("time", pa.float64(), nullable=False),
        pa.field("heldout_loss", pa.float64(), nullable=True),
        pa.field("skipped", pa.bool_(), nullable=False),
    ]
)


def gather_metrics(sources: list[Path], target: Path) -> int:
    """Write the rows of every attempt's JSON lines to a Parquet file, in order of attempt and step; return how many.

    A last line without its end (a killed writer) is left out. Steps that were replayed are there once per attempt.
    """
    rows = sorted((row for path in sources for row in read_rows(path)), key=lambda row: (row.attempt, row.step))
    columns = {name: [getattr(row, name) for row in rows] for name in SCHEMA.names}
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns, schema=SCHEMA), buffer, compression="zstd")
    write_whole(target, buffer.getvalue())
    return len(rows)


def read_rows(path: Path) -> Iterator[MetricsRow]:
    """Yield the rows of one attempt, as far as they are whole; none when the attempt never made a step.

    Raises ``InputError`` at a line, other than a torn last one, that no writer wrote.
    """
    if not path.exists():
        return
    with reading("metrics of an attempt", path):
        file = path.open("rb")
    with file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            yield _row(line, f"{path}, line {number}")


def _row(line: bytes, where: str) -> MetricsRow:
    # An attempt of an earlier version left no step out, and says nothing of it (the row's default).
    with reading("row of metrics", where):
        return parsed(MetricsRow, line)
