import json
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow.parquet as pq

from steelrail.train.context import MetricsRow
from steelrail.train.metrics import gather_metrics


def row(step: int, attempt: int, heldout: float | None = None) -> MetricsRow:
    return MetricsRow(step, attempt, 2.5, step * 100, 2**63 - step, 0.7, 1e-3, 0.5, 200.0, 1e9 + step, heldout)


def write(path: Path, rows: list[MetricsRow], torn: str = "") -> Path:
    path.write_text("".join(json.dumps(asdict(one)) + "\n" for one in rows) + torn)
    return path


def test_attempts_are_gathered_in_order_with_replayed_steps_kept(tmp_path: Path) -> None:
    later = write(tmp_path / "b", [row(2, 2), row(3, 2, 1.5)])
    earlier = write(tmp_path / "a", [row(1, 1), row(2, 1)])
    assert gather_metrics([later, earlier, tmp_path / "never made"], tmp_path / "metrics.parquet") == 4
    table = pq.read_table(tmp_path / "metrics.parquet")
    assert table["step"].to_pylist() == [1, 2, 2, 3]
    assert table["attempt"].to_pylist() == [1, 1, 2, 2]
    assert table["heldout_loss"].to_pylist() == [None, None, None, 1.5]
    assert table["token_digest"].to_pylist() == [2**63 - step for step in (1, 2, 2, 3)]


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    source = write(tmp_path / "a", [row(1, 1)], torn='{"step": 2, "att')
    assert gather_metrics([source], tmp_path / "metrics.parquet") == 1


def test_a_row_of_an_earlier_version_left_no_step_out(tmp_path: Path) -> None:
    old = {name: value for name, value in asdict(row(1, 1)).items() if name != "skipped"}
    (tmp_path / "a").write_text(json.dumps(old) + "\n")
    source = write(tmp_path / "b", [replace(row(2, 2), loss=float("nan"), skipped=True)])
    gather_metrics([tmp_path / "a", source], tmp_path / "metrics.parquet")
    assert pq.read_table(tmp_path / "metrics.parquet")["skipped"].to_pylist() == [False, True]


def test_no_attempt_gives_an_empty_table_of_the_same_columns(tmp_path: Path) -> None:
    assert gather_metrics([], tmp_path / "metrics.parquet") == 0
    names = pq.read_table(tmp_path / "metrics.parquet").schema.names
    assert names[:5] == ["step", "attempt", "loss", "tokens", "token_digest"]
