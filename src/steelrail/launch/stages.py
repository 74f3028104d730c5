"""What each finished stage made, a line each: the table that ends the demo and ``steelrail status``. An edge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from steelrail.artifacts.corpus import CorpusManifest
from steelrail.artifacts.cost import CostSummary
from steelrail.artifacts.fabric import FabricReport
from steelrail.artifacts.files import Artifact, read_artifact, results_folder
from steelrail.artifacts.shards import ShardsManifest
from steelrail.artifacts.train import TrainRecord
from steelrail.config.schema import Run
from steelrail.errors import InputError
from steelrail.units import show_bytes, show_usd

A = TypeVar("A", bound=Artifact)


def finished_stages(run: Run, key: str | None = None) -> dict[str, str]:
    """Return what each stage that is done made, by stage, in the chain's order. Others are not there.

    ``key``: of the model that is asked for; what was trained or billed under another key is not it.
    """
    folder = results_folder(run).absolute()
    made = {stage: _read(folder / path, kind) for stage, path, kind, _ in _STAGES}
    record, bill = made["train"], made["cost"]
    trained = record.key if isinstance(record, TrainRecord) else None
    if key not in (None, trained):
        made["train"] = trained = None
    if isinstance(bill, CostSummary) and bill.train_key != trained:
        made["cost"] = None
    return {stage: words(made[stage], folder / path) for stage, path, _, words in _STAGES if made[stage] is not None}


def first_open(finished: Mapping[str, str]) -> str:
    """Return the stage that is to come, or ``done``. What was trained without the fabric stage needs it no more."""
    passed = {*finished, *(("fabric",) if "train" in finished else ())}
    return next((stage for stage in STAGE_NAMES if stage not in passed), "done")


def _read(path: Path, kind: type[A]) -> A | None:
    try:
        return read_artifact(path, kind)
    except InputError:
        return None


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _corpus(made: CorpusManifest, path: Path) -> str:
    return f"{_count(len(made.objects), 'object')}, {made.num_rows:,} rows, {show_bytes(made.size_bytes)}"


def _shards(made: ShardsManifest, path: Path) -> str:
    dropped = f", {sum(made.dropped.values()):,} rows dropped" if made.dropped else ""
    tokens = f"{made.train_tokens:,} training and {made.heldout_tokens:,} held-out tokens"
    return f"{made.documents:,} documents, {tokens} in {len(made.data_shards)} data shards{dropped}"


def _fabric(made: FabricReport, path: Path) -> str:
    slowest = min((pair.gb_per_s for pair in made.pairs), default=None)
    pairs = f", slowest pair {slowest:.2f} GB/s" if slowest is not None else ""
    out = f", {', '.join(made.exclude)} left out as unfit" if made.exclude else ""
    leaves = _count(made.num_leaves, "leaf switch", "leaf switches")
    return f"{_count(len(made.nodes), 'node')} fit over {made.backend}, {leaves}{pairs}{out}"


def _train(made: TrainRecord, path: Path) -> str:
    loss = f", held-out loss {made.heldout_first:.3f} to {made.heldout_last:.3f}" if made.heldout_last else ""
    return f"{made.final_step:,} steps in {_count(len(made.attempts), 'attempt')}{loss}; {made.final_checkpoint}"


def _cost(made: CostSummary, path: Path) -> str:
    if made.total_micro_usd is None:
        return f"unavailable: {made.reason}"
    hours = f"{made.gpu_seconds / 3600:,.2f} GPU-hours at ${made.usd_per_gpu_hour}"
    return f"{show_usd(made.total_micro_usd)} for {hours}, goodput {made.goodput:.1%}; {path.parent / 'report.html'}"


_STAGES: tuple[tuple[str, str, type[Artifact], Callable[[Any, Path], str]], ...] = (
    ("corpus", "corpus/manifest.json", CorpusManifest, _corpus),
    ("shards", "shards/manifest.json", ShardsManifest, _shards),
    ("fabric", "fabric/report.json", FabricReport, _fabric),
    ("train", "train/record.json", TrainRecord, _train),
    ("cost", "cost/summary.json", CostSummary, _cost),
)
STAGE_NAMES = tuple(stage for stage, *_ in _STAGES)
