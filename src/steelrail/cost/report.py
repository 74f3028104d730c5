"""The report: one page that needs nothing else, from the bill and what the run recorded. Pure: facts in, HTML out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from steelrail.artifacts.cost import BilledSegment, Comparison, CostSummary, RequestsCost
from steelrail.artifacts.fabric import FabricReport
from steelrail.artifacts.shards import ShardsManifest
from steelrail.artifacts.train import Attempt, Ending, TrainRecord
from steelrail.config.prices import PriceRow
from steelrail.config.schema import Run
from steelrail.cost import pictures
from steelrail.cost.pictures import COLOURS, Curve, name_of
from steelrail.cost.pieces import Band
from steelrail.cost.storage import StorageCost, Stored
from steelrail.cost.words import (
    MEANINGS,
    NOTHING,
    against,
    cents,
    clock_time,
    count,
    gpu_hours,
    percent,
    rate,
    span,
    usd,
)
from steelrail.formats.hostlist import compress
from steelrail.units import show_bytes, show_seconds

INFINIBAND = {"yes": "in the price", "no": "not part of it", "unknown": "not stated by the source"}
GOOD_ENDINGS = (Ending.DONE,)
BAD_ENDINGS = (Ending.NODE_FAILURE, Ending.JOB_ERROR, Ending.STALLED, Ending.UNKNOWN)


@dataclass(frozen=True)
class Page:
    """All that the report shows. ``row`` is none when nothing could be priced."""

    run: Run
    summary: CostSummary
    record: TrainRecord
    row: PriceRow | None
    stale: bool
    shards: ShardsManifest | None
    fabric: FabricReport | None
    bands: tuple[Band, ...]
    curves: tuple[Curve, ...]
    storage: tuple[StorageCost, ...]
    stored: Stored


def render(page: Page) -> str:
    """Return the report as one HTML document, everything in it escaped but the pictures, which are ours."""
    environment = Environment(
        loader=PackageLoader("steelrail.cost", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=False
    )
    return environment.get_template("report.html.j2").render(**_view(page))


def _view(page: Page) -> dict[str, Any]:
    summary = page.summary
    return {
        "summary": summary,
        "lead": _lead(page),
        "notices": _notices(page),
        "cards": [{"name": name, "value": value} for name, value in _cards(page)],
        "categories": _categories(summary),
        "totals": {"gpu_hours": gpu_hours(summary.gpu_seconds), "cost": usd(summary.total_micro_usd)},
        "legend": _legend(page.bands),
        "attempts": [_attempt(one) for one in page.record.attempts],
        "training": _training(page),
        "fabric": _fabric(page.fabric),
        "comparisons": [_comparison(one, page) for one in summary.comparisons],
        "compared": _compared(page),
        "segments": [_segment(one) for one in summary.segments],
        "storage": [_storage(one) for one in page.storage],
        "stored": _stored(page.stored),
        "requests": _requests(page.summary.requests),
        "assumptions": _assumptions(page),
        "pictures": {name: Markup(text) for name, text in _pictures(page).items()},
        "made": clock_time(summary.provenance.ended, seconds=False) + " UTC",
    }


def _pictures(page: Page) -> dict[str, str]:
    summary = page.summary
    return {
        "waterfall": pictures.waterfall(summary.categories, summary.total_micro_usd) if summary.total_micro_usd else "",
        "attempts": _attempts_picture(page) if page.bands else "",
        "curves": pictures.curves(page.curves) if page.curves else "",
        "fabric": _fabric_picture(page.fabric) if page.fabric else "",
        "providers": _providers_picture(summary) if summary.comparisons else "",
    }


def _attempts_picture(page: Page) -> str:
    hosts = sorted({band.host for band in page.bands}, key=_natural)
    starts = {one.attempt: (one.started, one.ending.value) for one in page.record.attempts}
    return pictures.attempts_over_nodes(page.bands, hosts, starts)


def _providers_picture(summary: CostSummary) -> str:
    firm = [one for one in summary.comparisons if _is_paid(one, summary) or (one.trust != "low" and not one.stale)]
    return pictures.providers(firm, (summary.provider, summary.sku))


def _fabric_picture(report: FabricReport) -> str:
    worst = worst_pairs(report)
    hosts = sorted({host for pair in worst for host in pair}, key=_natural)
    return pictures.heat_map(worst, hosts) if hosts else ""


def worst_pairs(report: FabricReport) -> dict[tuple[str, str], float]:
    """Return GB/s between nodes, one direction: of several measurements of two nodes (rails), the slowest."""
    worst: dict[tuple[str, str], float] = {}
    for pair in report.pairs:
        if "/" not in pair.first + pair.second:
            name = (min(pair.first, pair.second), max(pair.first, pair.second))
            worst[name] = min(pair.gb_per_s, worst.get(name, pair.gb_per_s))
    return worst


def _natural(host: str) -> tuple[str, int, str]:
    digits = host[len(host.rstrip("0123456789")) :]
    return (host[: len(host) - len(digits)], int(digits or 0), host)


def _lead(page: Page) -> str:
    summary, record = page.summary, page.record
    trained = f"{count(record.final_step)} steps over {count(record.tokens)} tokens on {_shape(page.run)}"
    if summary.total_micro_usd is None:
        return f"{trained}. What it cost is not known."
    wasted = [(one.micro_usd, name) for name, one in summary.categories.items() if name != "productive"]
    first = f"{trained} cost {usd(summary.total_micro_usd)}."
    good = summary.categories.get("productive")
    share = cents((good.micro_usd if good else 0) / summary.total_micro_usd) if summary.total_micro_usd else None
    second = f" Of every dollar, {share} trained the model" if share else ""
    most = ", ".join(_went(money, name, summary.total_micro_usd) for money, name in sorted(wasted)[:-4:-1] if money)
    return f"{first}{second}{'; ' + most if second and most else ''}."


def _went(money: int, name: str, total: int) -> str:
    return f"{cents(money / total)} went to {name_of(name)}"


def _shape(run: Run) -> str:
    nodes = f"{run.shape.nodes} node{'s' if run.shape.nodes > 1 else ''}"
    if not run.shape.num_gpus:
        return f"{nodes} without GPUs"
    idle = " (counted and paid; the ranks computed on CPUs)" if run.shape.device == "cpu" else ""
    return f"{run.shape.num_gpus} GPUs in {nodes}{idle}"


def _notices(page: Page) -> list[str]:
    found = [f"This bill is {page.summary.status}: {page.summary.reason}"] if page.summary.reason else []
    if page.row and page.stale:
        age = f"more than {page.run.cost.max_age_days} days before the run"
        found.append(f"The price of {page.row.provider} {page.row.sku} was read on {page.row.read_on}, {age}.")
    return found


def _cards(page: Page) -> list[tuple[str, str]]:
    summary = page.summary
    train = [one for one in summary.segments if one.stage == "train"]
    hours = sum(one.end - one.start for one in train)
    return [
        ("total", usd(summary.total_micro_usd)),
        ("per million tokens", usd(summary.micro_usd_per_million_tokens)),
        ("goodput", percent(summary.goodput)),
        ("training time paid", show_seconds(hours)),
        ("GPU-hours", gpu_hours(summary.gpu_seconds)),
        ("attempts", str(summary.attempts)),
        ("unattributed", percent(summary.unattributed_share, 2)),
    ]


def _categories(summary: CostSummary) -> list[dict[str, object]]:
    total = summary.total_micro_usd or 1
    return [
        {
            "name": name_of(name),
            "meaning": MEANINGS[name],
            "colour": COLOURS[name],
            "share": max(summary.categories[name].micro_usd / total, 0.0),
            "percent": percent(summary.categories[name].micro_usd / total),
            "gpu_hours": gpu_hours(summary.categories[name].gpu_seconds),
            "cost": usd(summary.categories[name].micro_usd),
        }
        for name in COLOURS
        if name in summary.categories
    ]


def _legend(bands: Sequence[Band]) -> list[dict[str, str]]:
    there = {band.span.category for band in bands}
    return [{"name": name_of(name), "colour": colour} for name, colour in COLOURS.items() if name in there]


def _attempt(one: Attempt) -> dict[str, object]:
    tone = "good" if one.ending in GOOD_ENDINGS else "bad" if one.ending in BAD_ENDINGS else ""
    return {
        "number": one.attempt,
        "step_id": one.step_id or one.job_id,
        "started": clock_time(one.started),
        "lasted": show_seconds(one.ended - one.started) if one.ended is not None else "not known",
        "resumed": NOTHING if one.resumed_from is None else f"step {count(one.resumed_from)}",
        "steps": "none" if one.first_step is None else span(one.first_step, one.last_step),
        "ending": one.ending.value.replace("_", " "),
        "tone": tone,
        "reason": one.reason,
        "start": ", ".join(f"{name} {seconds:.1f} s" for name, seconds in one.start.items()),
    }


def _training(page: Page) -> str:
    record, model = page.record, page.run.train.model
    shape = f"{model.num_layers} layers of width {model.dim}, vocabulary {count(model.vocab_size)}"
    ending = record.ending.value.replace("_", " ")
    batch = f"{count(page.run.train.global_batch_sequences * page.run.train.sequence_tokens)} tokens a step"
    text = f"{shape}, {page.run.train.precision}; {batch}; ended at step {count(record.final_step)}, {ending}."
    if record.heldout_first is not None and record.heldout_last is not None:
        text += f" Held-out loss fell from {record.heldout_first:.3f} to {record.heldout_last:.3f} nats per token."
    return text if page.curves else f"{text} No metrics were kept."


def _fabric(report: FabricReport | None) -> dict[str, object] | None:
    if report is None:
        return None
    fit = "The nodes are fit" if report.fit else f"Unfit: {', '.join(report.exclude) or 'see below'}"
    leaves = f"{report.num_leaves} leaf switch{'es' if report.num_leaves != 1 else ''}"
    when = clock_time(report.measured, seconds=False)
    size = show_bytes(report.pairs[0].size_bytes) if report.pairs else ""
    first = report.world[0] if report.world else None
    return {
        "verdict": f"{fit}: {len(report.nodes)} nodes on {leaves}, over {report.backend}, measured {when} UTC.",
        "pairs": f"GB/s between every two nodes, one direction, {size} a message; the slowest rail of each pair.",
        "world": [
            {
                "collective": f"{one.collective} ({one.what})" if one.what else one.collective,
                "size": show_bytes(one.size_bytes),
                "ranks": len(one.ranks),
                "p50": f"{one.seconds_p50 * 1e3:,.2f} ms",
                "p99": f"{one.seconds_p99 * 1e3:,.2f} ms",
                "busbw": f"{one.busbw_gb_per_s:.3g} GB/s",
            }
            for one in report.world
        ],
        "terms": f"{first.dtype}, {first.algorithm}, {first.library}, {first.repeats} repeats." if first else "",
        "findings": report.findings,
    }


def _comparison(one: Comparison, page: Page) -> dict[str, object]:
    paid = _is_paid(one, page.summary)
    mine = next((row.micro_usd for row in page.summary.comparisons if _is_paid(row, page.summary)), 0)
    return {
        **one.model_dump(exclude={"micro_usd", "usd_per_gpu_hour"}),
        "terms": one.mode if one.region == "not stated" else f"{one.mode}, {one.region}",
        "rate": rate(one.usd_per_gpu_hour),
        "cost": usd(one.micro_usd),
        "against": "paid" if paid else against(one.micro_usd, mine),
        "tone": "paid" if paid else "weak" if one.trust == "low" or one.stale else "",
    }


def _is_paid(one: Comparison, summary: CostSummary) -> bool:
    return (one.provider, one.sku) == (summary.provider, summary.sku)


def _compared(page: Page) -> str:
    if page.row is None:
        return ""
    return (
        f"{gpu_hours(page.summary.gpu_seconds)} GPU-hours of {page.row.gpu}, as Slurm charged them, at every rate for "
        "the same GPU in force on the day of the run. The picture leaves out weak and stale sources; its pale bars are "
        "not on demand. Rates differ in what they include, InfiniBand above all."
    )


def _segment(one: BilledSegment) -> dict[str, object]:
    return {
        "stage": one.stage,
        "job_id": one.job_id,
        "number": one.segment,
        "state": one.state,
        "nodes": compress(one.nodes),
        "started": clock_time(one.start),
        "seconds": count(round(one.end - one.start)),
        "gpus": one.gpus or NOTHING,
        "cpus": one.cpus,
        "gpu_hours": gpu_hours(one.gpu_seconds) if one.gpus else NOTHING,
        "cost": usd(one.micro_usd),
    }


def _storage(one: StorageCost) -> dict[str, object]:
    return {
        "service": one.row.service,
        "region": one.row.region,
        "rate": rate(one.row.usd_gb_month),
        "month": usd(one.micro_usd_per_month),
        "leave": usd(one.micro_usd_to_leave),
        "requests": usd(one.micro_usd_of_requests),
        "read_on": one.row.read_on.isoformat(),
        "source": one.row.source,
        "note": one.row.note,
    }


def _stored(kept: Stored) -> str:
    return (
        f"The run keeps {show_bytes(kept.checkpoint_bytes)} in {kept.checkpoints} checkpoints and "
        f"{show_bytes(kept.shard_bytes)} of data shards. Below, at the book's stores: a month of that, the run's "
        "requests, and taking all of it out to the Internet once. None of it is in the total."
    )


def _requests(made: RequestsCost) -> str:
    """What was asked of the store, and what that cost at the run's own one."""
    total = made.total
    said = (
        f"The store answered {total.put:,} PUT, {total.list:,} LIST, {total.get:,} GET and {total.delete:,} DELETE "
        f"requests (parts count as PUT, HEAD as GET)"
    )
    if made.micro_usd is None:
        return f"{said}; their cost is not known: {made.reason}."
    return f"{said}: {usd(made.micro_usd)} at {made.service}, by {made.source}, read {made.read_on}."


def _assumptions(page: Page) -> list[tuple[str, str]]:
    summary, row = page.summary, page.row
    rows: list[tuple[str, str]] = []
    if row:
        rows += [
            (
                "Price",
                f"${rate(summary.usd_per_gpu_hour)} per GPU-hour: {row.provider} {row.sku}, {row.gpu}, {row.mode}",
            ),
            ("Region", row.region),
            ("Source", f"{row.source}, read {row.read_on}, in force from {row.effective_from}, trust {row.trust}"),
            ("InfiniBand", INFINIBAND[row.infiniband]),
        ]
        rows += [("Note", row.note)] if row.note else []
        rows += [("CPU nodes", f"${page.run.cost.cpu_usd_per_hour} per CPU-hour, from the run file")]
    provenance = summary.provenance
    rows += [
        ("Goodput", "productive time over all that the fabric and training jobs were paid; waits are not productive"),
        ("Replayed", "the compute of steps that an earlier attempt had made already"),
        ("Training key", summary.train_key),
        ("Final checkpoint", page.record.final_checkpoint),
        (
            "Commit",
            f"{provenance.commit or 'not under version control'}{', changed since' if provenance.dirty else ''}",
        ),
        ("Versions", ", ".join(f"{name} {version}" for name, version in provenance.versions.items())),
    ]
    rows += [(f"Input {name}", digest) for name, digest in provenance.inputs.items()]
    return rows
