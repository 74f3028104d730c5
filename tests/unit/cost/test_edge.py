"""The stage on a whole run folder: every attempt, every category, every micro-dollar."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import synthetic

from steelrail.artifacts.cost import CostSummary
from steelrail.artifacts.files import read_artifact, results_folder
from steelrail.artifacts.jobs import NotedJob, note_job
from steelrail.clients import clock
from steelrail.config.schema import Run
from steelrail.cost import edge
from steelrail.errors import AccountingError, ConfigError, InputError
from steelrail.launch.stages import finished_stages

WAIT = 20.0
GPUS_OF_RANKS = 64


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the drawing to test_report: it takes seconds."""
    monkeypatch.setattr(edge, "render", lambda page: f"page of {page.run.name}")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> CostSummary:
    """The bill of the story without waits."""
    built = synthetic.build(tmp_path_factory.mktemp("plain"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge, "render", lambda page: "")
        return edge.run_stage(built.run, built.slurm)


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Make the clock's waits pass at once; return them."""
    waited: list[float] = []
    monkeypatch.setattr(clock, "sleep", waited.append)
    monkeypatch.setattr(clock, "monotonic", lambda: sum(waited))
    return waited


def seconds_of(summary: CostSummary) -> dict[str, float]:
    return {name: one.gpu_seconds for name, one in summary.categories.items() if one.gpu_seconds}


def cost_folder(run: Run) -> Path:
    return edge.summary_path(run).parent


@pytest.mark.parametrize("seed", range(5))
def test_time_of_every_category_is_found_and_money_sums_exactly(tmp_path: Path, seed: int) -> None:
    built = synthetic.build(tmp_path, seed)
    summary = edge.run_stage(built.run, built.slurm)
    assert seconds_of(summary) == pytest.approx({name: value for name, value in built.truth.items() if value}, abs=0.5)
    assert sum(one.micro_usd for one in summary.categories.values()) == summary.total_micro_usd
    assert sum(one.micro_usd for one in summary.segments) == summary.total_micro_usd
    assert sum(one.gpus * (one.end - one.start) for one in summary.segments) == summary.gpu_seconds


def test_what_slurm_charged_times_the_price_is_the_total(tmp_path: Path) -> None:
    built = synthetic.build(tmp_path)
    summary = edge.run_stage(built.run, built.slurm)
    exact = (summary.gpu_seconds * 3.99 + summary.cpu_seconds * 0.04) / 3600 * 1e6
    assert summary.total_micro_usd == pytest.approx(exact, abs=len(summary.segments))


def test_every_segment_of_a_run_with_every_ending_is_billed(tmp_path: Path) -> None:
    built = synthetic.build(tmp_path)
    summary = edge.run_stage(built.run, built.slurm)
    train = [(one.segment, one.state, one.gpus, len(one.nodes)) for one in summary.segments if one.stage == "train"]
    assert train == [(0, "RESIZING", 80, 5), (1, "PREEMPTED", 64, 4), (2, "REQUEUED", 64, 4), (3, "COMPLETED", 64, 4)]
    assert (summary.attempts, summary.status, summary.unattributed_share) == (5, "exact", 0.0)


def test_the_ledger_sums_to_the_total_and_to_the_categories(tmp_path: Path) -> None:
    built = synthetic.build(tmp_path)
    summary = edge.run_stage(built.run, built.slurm)
    rows = pq.read_table(cost_folder(built.run) / "ledger.parquet").to_pylist()
    sums: dict[str, int] = {}
    for row in rows:
        sums[row["category"]] = sums.get(row["category"], 0) + row["micro_usd"]
    assert sums == {name: one.micro_usd for name, one in summary.categories.items()}
    assert {row["attempt"] for row in rows} == {None, 1, 2, 3, 4, 5}
    assert sum(row["gpu_seconds"] for row in rows) == pytest.approx(summary.gpu_seconds)


@pytest.mark.parametrize(
    "category",
    [
        "startup",
        "staging",
        "fabric_check",
        "restore",
        "communication",
        "data_wait",
        "checkpoint",
        "productive",
        "replayed",
        "lost",
        "idle",
    ],
)
def test_a_wait_of_twenty_seconds_is_found_in_its_category_alone(
    tmp_path: Path, plain: CostSummary, category: str
) -> None:
    before, after = seconds_of(plain), seconds_of(bill(tmp_path, {category: WAIT}))
    grown = {name: (after[name] - before[name]) / GPUS_OF_RANKS for name in after}
    # The spare is idle while the others wait: a quarter of what four nodes are.
    spare = 0.0 if category in ("idle", "fabric_check") else WAIT * 16 / GPUS_OF_RANKS
    twice = 1.5 if category == "fabric_check" else 1.0  # the fabric job is given half a wait more
    expected = dict.fromkeys(after, 0.0) | {"idle": spare} | {category: WAIT * twice}
    if category == "fabric_check":
        expected["idle"] = WAIT * 16 / GPUS_OF_RANKS
    assert grown == pytest.approx(expected, abs=1.0)


def bill(folder: Path, waits: dict[str, float]) -> CostSummary:
    built = synthetic.build(folder, 1, waits)
    return edge.run_stage(built.run, built.slurm)


def test_a_wait_in_preprocessing_is_paid_at_the_cpu_rate(tmp_path: Path, plain: CostSummary) -> None:
    after = bill(tmp_path, {"preprocessing": WAIT})
    grown = after.categories["preprocessing"].micro_usd - plain.categories["preprocessing"].micro_usd
    assert grown == pytest.approx(WAIT * 40_000 / 3600, abs=1)


def test_more_than_one_per_cent_unattributed_stops_and_leaves_the_bill_under_another_name(tmp_path: Path) -> None:
    built = synthetic.build(tmp_path, 1, {"unattributed": WAIT})
    with pytest.raises(AccountingError, match="unattributed share of the bill must be at most 1%"):
        edge.run_stage(built.run, built.slurm)
    left = read_artifact(cost_folder(built.run) / "summary-unbalanced.json", CostSummary)
    assert not edge.summary_path(built.run).exists()
    assert left.categories["unattributed"].gpu_seconds == pytest.approx(WAIT * GPUS_OF_RANKS, abs=GPUS_OF_RANKS)
    assert (left.status, left.reason) == ("estimated", f"{left.unattributed_share:.2%} of the bill is unattributed")


def test_events_that_vanished_are_not_explained_away(tmp_path: Path) -> None:
    built = synthetic.build(tmp_path)
    synthetic.without_events(built, 3)
    with pytest.raises(AccountingError, match="attempt 3"):
        edge.run_stage(built.run, built.slurm)


def test_the_stage_waits_for_rows_that_are_late(tmp_path: Path, hurry: list[float]) -> None:
    built = synthetic.build(tmp_path)
    built.slurm.late = 3
    total = edge.run_stage(built.run, built.slurm).total_micro_usd
    built.slurm.late = 0
    assert (len(hurry), total) == (3, edge.run_stage(built.run, built.slurm).total_micro_usd)


def test_rows_that_never_come_end_in_an_error_and_no_summary(tmp_path: Path, hurry: list[float]) -> None:
    built = synthetic.build(tmp_path)
    built.slurm.text = "\n".join(line for line in built.slurm.text.splitlines() if not line.startswith("98"))
    with pytest.raises(AccountingError, match="job 98 of shards must be ended in Slurm's accounting, is not there"):
        edge.run_stage(built.run, built.slurm)
    assert sum(hurry) == edge.WAIT_SECONDS
    assert not cost_folder(built.run).exists()


def test_an_attempt_in_no_row_is_an_error(tmp_path: Path, hurry: list[float]) -> None:
    built = synthetic.build(tmp_path)
    lost = synthetic.with_attempt(built, 5, started=float(synthetic.T0 + 90_000), ended=float(synthetic.T0 + 90_100))
    with pytest.raises(AccountingError, match="attempt 5 of job 101 must be within a row"):
        edge.run_stage(lost.run, lost.slurm)


def test_without_accounting_the_bill_is_unavailable_and_never_zero(tmp_path: Path) -> None:
    built = synthetic.build(tmp_path)
    built.slurm.accounting = False
    summary = edge.run_stage(built.run, built.slurm)
    assert (summary.status, summary.total_micro_usd, summary.categories, summary.segments) == (
        "unavailable",
        None,
        {},
        (),
    )
    assert summary.reason == "this Slurm keeps no accounts that sacct can read"
    assert (summary.micro_usd_per_million_tokens, summary.comparisons) == (None, ())


def test_the_local_executor_is_never_asked_for_accounts(tmp_path: Path) -> None:
    built = synthetic.build(tmp_path)
    local = built.run.model_copy(update={"slurm": built.run.slurm.model_copy(update={"executor": "local"})})
    summary = edge.run_stage(local, built.slurm)
    assert (summary.status, built.slurm.calls) == ("unavailable", 0)


def test_a_run_is_priced_at_its_own_day(tmp_path: Path) -> None:
    book = tmp_path / "book"
    book.mkdir()
    (book / "2026-10.yaml").write_text(BOOK)
    built = synthetic.build(tmp_path / "run", price_book=str(book), provider="acme", sku="box")
    assert edge.run_stage(built.run, built.slurm).usd_per_gpu_hour == "2.5"


ROW = """
  - {{provider: acme, sku: box, gpu: h100-sxm, gpus: 8, region: r, mode: on-demand, usd_h: '{usd}',
     effective_from: {day}, read_on: {day}, source: acme, trust: high}}
"""
DAYS = {"2026-10-01": "16", "2026-11-01": "20", "2026-12-01": "24"}
BOOK = "version: 1\nprices:" + "".join(ROW.format(usd=usd, day=day) for day, usd in DAYS.items())


def test_a_stale_price_is_refused_where_the_run_file_says_so(tmp_path: Path) -> None:
    built = synthetic.build(tmp_path, max_age_days=5, allow_stale=False)
    with pytest.raises(ConfigError, match="must be read within 5 days"):
        edge.run_stage(built.run, built.slurm)


def test_the_same_hours_are_compared_with_the_same_gpu_only(tmp_path: Path) -> None:
    built = synthetic.build(tmp_path)
    summary = edge.run_stage(built.run, built.slurm)
    names = {(one.provider, one.sku) for one in summary.comparisons}
    (paid,) = (one for one in summary.comparisons if (one.provider, one.sku) == ("runpod", "h100-sxm-secure"))
    gpu_money = sum(one.micro_usd for one in summary.segments if one.gpus)
    assert ("gcp", "a3-ultragpu-8g") not in names and ("hyperstack", "h100-nvlink") not in names
    assert paid.micro_usd == gpu_money


def test_the_summary_is_written_last_and_holds_the_fixed_names(tmp_path: Path) -> None:
    built = synthetic.build(tmp_path)
    edge.run_stage(built.run, built.slurm)
    folder = cost_folder(built.run)
    newest = max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    written = json.loads((folder / "summary.json").read_text())
    assert newest.name == "summary.json"
    assert isinstance(written["total_micro_usd"], int)
    assert {"gpu_seconds", "categories", "attempts"} <= set(written)
    assert written["categories"]["productive"].keys() == {"gpu_seconds", "micro_usd"}


def test_a_repeat_gives_the_same_bill(tmp_path: Path) -> None:
    built = synthetic.build(tmp_path)
    first, second = (edge.run_stage(built.run, built.slurm) for _ in range(2))
    assert first.model_dump(exclude={"provenance"}) == second.model_dump(exclude={"provenance"})


def test_a_run_that_did_not_train_yet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="training record must be there"):
        edge.run_stage(synthetic.make_run(tmp_path), synthetic.FakeSlurm(""))


def test_a_fabric_job_that_failed_before_is_on_the_bill(tmp_path: Path) -> None:
    built = synthetic.build(tmp_path)
    before = edge.run_stage(built.run, built.slurm)
    (good,) = [line for line in built.slurm.text.splitlines() if line.startswith("100|")]
    failed = good.replace("100|", "95|", 1).replace("|COMPLETED|", "|FAILED|")
    folder = Path(built.run.results) / built.run.name
    own = json.loads((folder / "fabric" / "report.json").read_text())["key"]
    note_job(folder, NotedJob("fabric", own, "95"))
    note_job(folder, NotedJob("shards", "another key", "94"))
    after = edge.run_stage(built.run, synthetic.FakeSlurm(f"{built.slurm.text}{failed}\n"))
    (same,) = [one.micro_usd for one in before.segments if one.job_id == "100"]
    assert ("FAILED", same) == next((one.state, one.micro_usd) for one in after.segments if one.job_id == "95")
    assert before.total_micro_usd is not None and before.total_micro_usd + same == after.total_micro_usd


def test_a_fabric_job_of_other_settings_was_paid_for_the_run_too(tmp_path: Path) -> None:
    built = synthetic.build(tmp_path)
    before = edge.run_stage(built.run, built.slurm)
    (good,) = [line for line in built.slurm.text.splitlines() if line.startswith("100|")]
    note_job(Path(built.run.results) / built.run.name, NotedJob("fabric", "another key", "96"))
    text = f"{built.slurm.text}{good.replace('100|', '96|', 1)}\n"
    after = edge.run_stage(built.run, synthetic.FakeSlurm(text))
    (same,) = [one.micro_usd for one in before.segments if one.job_id == "100"]
    assert before.total_micro_usd is not None and before.total_micro_usd + same == after.total_micro_usd


def test_a_run_that_was_submitted_without_the_fabric_stage_has_its_bill(tmp_path: Path) -> None:
    built = synthetic.build(tmp_path)
    before = edge.run_stage(built.run, built.slurm)
    folder = Path(built.run.results) / built.run.name
    (folder / "fabric" / "report.json").unlink()
    after = edge.run_stage(built.run, built.slurm)
    fabric = [one.micro_usd for one in before.segments if one.stage == "fabric"]
    assert before.total_micro_usd == (after.total_micro_usd or 0) + sum(fabric)
    assert "fabric" not in after.provenance.inputs


def test_what_was_trained_and_billed_under_another_key_is_not_what_is_asked_for(tmp_path: Path) -> None:
    built = synthetic.build(tmp_path)
    edge.run_stage(built.run, built.slurm)
    record = results_folder(built.run) / "train" / "record.json"
    key = json.loads(record.read_text())["key"]
    assert {"train", "cost"} <= finished_stages(built.run).keys()
    assert {"train", "cost"} <= finished_stages(built.run, key).keys()
    assert not {"train", "cost"} & finished_stages(built.run, "another key1").keys()
    record.unlink()
    assert "cost" not in finished_stages(built.run)


@pytest.mark.parametrize("folder", [True, False])
def test_metrics_that_are_damaged_are_named_with_what_makes_them_again(tmp_path: Path, folder: bool) -> None:
    built = synthetic.build(tmp_path)
    path = results_folder(built.run) / "train" / "metrics.parquet"
    path.unlink(missing_ok=True)
    path.mkdir() if folder else path.write_bytes(b"no Parquet")
    with pytest.raises(InputError, match=r"metrics must be as they were written, is damaged .*run steelrail train"):
        edge.run_stage(built.run, built.slurm)


SAVES = {1: 2, 2: 1, 3: 2, 4: 1, 5: 2}  # by attempt, of each of its eight ranks: at steps that 25 divides


def test_requests_of_every_attempt_and_shard_job_are_counted_and_priced_at_the_runs_store(tmp_path: Path) -> None:
    built = synthetic.build(tmp_path)
    made = edge.run_stage(built.run, built.slurm).requests
    saves = 8 * sum(SAVES.values())
    assert {name: one.put for name, one in made.counts.items()} == {
        "shards": 12,
        **{f"attempt {number}": 8 * 4 * count for number, count in SAVES.items()},
    }
    assert (made.total.put, made.total.get, made.total.list) == (12 + 4 * saves, 280 + 3 * saves, saves)
    exact = (made.total.put + made.total.list) * 5 + made.total.get * 0.4
    assert (made.micro_usd, made.service, made.reason) == (round(exact), "aws-s3-standard", None)


def with_store(built: synthetic.Synthetic, endpoint: str, **cost: object) -> Run:
    store = built.run.store.model_copy(update={"endpoint": endpoint})
    return built.run.model_copy(update={"store": store, "cost": built.run.cost.model_copy(update=cost)})


def test_requests_to_a_store_that_the_book_does_not_know_are_counted_and_not_priced(tmp_path: Path) -> None:
    built = synthetic.build(tmp_path)
    summary = edge.run_stage(with_store(built, "https://s3.example.com"), built.slurm)
    assert summary.requests.total.put > 0
    assert (summary.requests.micro_usd, summary.requests.reason) == (
        None,
        "the price of this store is not in the price book",
    )
    assert summary.storage_micro_usd_per_month is None


def test_a_store_of_ones_own_is_priced_by_its_name_in_the_book(tmp_path: Path) -> None:
    built = synthetic.build(tmp_path)
    run = with_store(built, "https://object.example.com", store_service="coreweave-object-hot")
    made = edge.run_stage(run, built.slurm)
    assert (made.requests.micro_usd, made.requests.source) == (0, "coreweave.com/pricing")
    assert made.storage_micro_usd_per_month is not None and made.storage_micro_usd_per_month > 0


def test_an_attempt_of_earlier_code_that_counted_nothing_leaves_the_sum_unknown(tmp_path: Path) -> None:
    built = synthetic.build(tmp_path)
    for path in (Path(built.run.results) / built.run.name / "train").rglob("attempt-0003-rank-*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if '"requests"' not in line))
    made = edge.run_stage(built.run, built.slurm).requests
    assert (made.micro_usd, made.reason) == (None, "requests of attempt 3 were not counted")


def test_a_misspelt_store_of_the_price_book_is_named(tmp_path: Path) -> None:
    built = synthetic.build(tmp_path, store_service="aws-s3-standart")
    with pytest.raises(ConfigError, match="did you mean aws-s3-standard"):
        edge.run_stage(built.run, built.slurm)
