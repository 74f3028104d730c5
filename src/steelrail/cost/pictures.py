"""The report's pictures, each a figure from rows. Pure: data in, SVG text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from steelrail.artifacts.cost import CategoryCost, Comparison
from steelrail.cost.pieces import Band
from steelrail.cost.svg import INK, LINE, MUTED, PAPER, style, to_svg
from steelrail.cost.timeline import Span
from steelrail.cost.words import rate
from steelrail.units import MICRO_USD_PER_USD, show_usd

WIDTH = 11.0
# One hue a kind of time, in the order of a step's life: what trained, what helped it, what was wasted.
COLOURS: Mapping[str, str] = {
    "productive": "#12936b",
    "communication": "#2bb3b1",
    "data_wait": "#e98a3a",
    "checkpoint": "#3c78d8",
    "restore": "#7ba9ea",
    "staging": "#7d66c9",
    "fabric_check": "#b39ae6",
    "startup": "#8492a6",
    "preprocessing": "#56708f",
    "replayed": "#e3b422",
    "lost": "#d5454f",
    "idle": "#b9c2cd",
    "unattributed": "#c0408a",
}
NAMES: Mapping[str, str] = {
    "communication": "exposed communication",
    "data_wait": "data wait",
    "fabric_check": "fabric check",
    "startup": "start-up",
}
MAX_POINTS = 1500
Array = np.ndarray[Any, Any]


def name_of(category: str) -> str:
    """Return a category as a reader's words."""
    return NAMES.get(category, category)


@dataclass(frozen=True)
class Curve:
    """Steps of one attempt, in order: arrays of equal length. ``heldout`` is NaN where none was measured."""

    attempt: int
    step: Array
    loss: Array
    tokens_per_s: Array
    heldout: Array


def waterfall(categories: Mapping[str, CategoryCost], total_micro_usd: int) -> str:
    """Return the bill as a waterfall: each category begins where the one before it ended, the total closes it."""
    order = [name for name in COLOURS if name in categories and categories[name].micro_usd > 0]
    with style("waterfall"):
        figure, axes = _figure(0.34 * (len(order) + 1) + 0.5)
        begin = 0
        for row, name in enumerate(order):
            _fall(axes, row, begin, categories[name].micro_usd, total_micro_usd, COLOURS[name])
            begin += categories[name].micro_usd
        _fall(axes, len(order), 0, total_micro_usd, total_micro_usd, INK)
        axes.set_yticks(range(len(order) + 1), [*(name_of(name) for name in order), "total"])
        _rows(axes, len(order) + 1)
        axes.set_xlim(0, total_micro_usd / MICRO_USD_PER_USD * 1.16 or 1)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short_usd(value)))
        return to_svg(figure, "waterfall", f"Cost by category; total {show_usd(total_micro_usd)}")


def _fall(axes: Axes, row: int, begin: int, amount: int, total: int, colour: str) -> None:
    left, width = begin / MICRO_USD_PER_USD, amount / MICRO_USD_PER_USD
    axes.barh(row, width, left=left, height=0.62, color=colour, linewidth=0)
    axes.plot([left + width] * 2, [row - 0.31, row + 1.31 if row >= 0 else row], color=LINE, linewidth=0.6, zorder=0)
    share = f" · {amount / total:.1%}" if amount != total else ""
    axes.annotate(
        f"{show_usd(amount)}{share}", (left + width, row), (5, 0), textcoords="offset points", va="center", fontsize=8.5
    )


def attempts_over_nodes(bands: Sequence[Band], hosts: Sequence[str], starts: Mapping[int, tuple[float, str]]) -> str:
    """Return who did what when: a row a node, time to the right. ``starts``: each attempt's begin (Unix s), ending."""
    origin = min(band.span.start for band in bands)
    unit, seconds = _time_unit(max(band.span.end for band in bands) - origin)
    height = max(0.14, min(0.36, 8.0 / len(hosts)))
    with style("attempts"):
        figure, axes = _figure(height * len(hosts) + 1.15)
        for row, host in enumerate(hosts):
            for name in dict.fromkeys(band.span.category for band in bands if band.host == host):
                axes.broken_barh(
                    _bars(bands, host, name, origin, seconds), (row - 0.36, 0.72), color=COLOURS[name], linewidth=0
                )
        for number, (start, ending) in starts.items():
            _mark(axes, (start - origin) / seconds, f"{number}", ending, len(hosts))
        axes.set_yticks(range(len(hosts)), hosts)
        _rows(axes, len(hosts))
        axes.set_xlabel(f"{unit} since the first segment began")
        axes.set_xlim(0, (max(band.span.end for band in bands) - origin) / seconds)
        return to_svg(figure, "attempts", f"{len(starts)} attempts on {len(hosts)} nodes over time, by category")


def _bars(bands: Sequence[Band], host: str, name: str, origin: float, unit: float) -> list[tuple[float, float]]:
    own = [band.span for band in bands if band.host == host and band.span.category == name]
    joined: list[Span] = []
    for span in sorted(own, key=lambda one: one.start):
        touches = bool(joined) and span.start - joined[-1].end < unit * 1e-6
        start = joined.pop().start if touches else span.start
        joined.append(Span(start, span.end, span.category))
    return [((span.start - origin) / unit, span.seconds / unit) for span in joined]


def _mark(axes: Axes, at: float, text: str, ending: str, rows: int) -> None:
    axes.plot([at, at], [-0.5, rows - 0.5], color=INK, linewidth=0.8, linestyle=(0, (2, 2)))
    axes.annotate(text, (at, -0.5), (0, 5), textcoords="offset points", ha="center", va="bottom", fontsize=8, color=INK)


def curves(series: Sequence[Curve]) -> str:
    """Return loss and tokens per second against step; dotted where an attempt began, pale where it was replayed."""
    with style("curves"):
        figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        for one, after in zip(series, [*series[1:], None], strict=True):
            _curve(upper, lower, one, int(after.step[0]) if after and len(after.step) else None)
        for axes in (upper, lower):
            axes.yaxis.grid(True)
            axes.yaxis.set_major_locator(MaxNLocator(5))
            for one in series[1:]:
                axes.axvline(one.step[0], color=MUTED, linewidth=0.8, linestyle=(0, (2, 2)))
        for one in series[1:]:
            _say(upper, f"attempt {one.attempt}", one.step[0])
        upper.set_ylabel("loss, nats per token")
        lower.set_ylabel("tokens per second")
        lower.set_xlabel("step")
        lower.set_ylim(bottom=0)
        lower.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        _legend_of_curves(upper, series)
        return to_svg(figure, "curves", "Loss and throughput against step, with restarts")


def _say(axes: Axes, text: str, at: float) -> None:
    where: Any = ("data", "axes fraction")
    axes.annotate(
        text, (at, 1), (3, -2), xycoords=where, textcoords="offset points", va="top", fontsize=7.5, color=MUTED
    )


def _curve(upper: Axes, lower: Axes, one: Curve, redone_from: int | None) -> None:
    """Draw one attempt; its steps from ``redone_from`` on were made again by the next."""
    kept = one.step < redone_from if redone_from is not None else np.full(len(one.step), True)
    for chosen, alpha in ((kept, 1.0), (~kept, 0.35)):
        upper.plot(*thin(one.step[chosen], one.loss[chosen]), color=COLOURS["productive"], linewidth=1.4, alpha=alpha)
        rate = thin(one.step[chosen], one.tokens_per_s[chosen])
        lower.plot(*rate, color=COLOURS["checkpoint"], linewidth=1.1, alpha=alpha)
    known = ~np.isnan(one.heldout)
    upper.plot(
        one.step[known], one.heldout[known], "o", color=COLOURS["data_wait"], markersize=5, markeredgecolor=PAPER
    )


def _legend_of_curves(axes: Axes, series: Sequence[Curve]) -> None:
    axes.plot([], [], color=COLOURS["productive"], label="training")
    if any((~np.isnan(one.heldout)).any() for one in series):
        axes.plot([], [], "o", color=COLOURS["data_wait"], markersize=5, label="held-out")
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), fontsize=8.5, ncols=2, borderaxespad=0)


def thin(step: Array, value: Array) -> tuple[Array, Array]:
    """Return at most ``MAX_POINTS`` points: the means of equal runs of steps. Nothing is dropped, peaks soften."""
    size = -(-len(step) // MAX_POINTS)
    if size <= 1:
        return step, value
    edges = np.arange(0, len(step), size)
    counts = np.diff([*edges, len(step)])
    return step[edges], np.add.reduceat(value, edges) / counts


def heat_map(pairs: Mapping[tuple[str, str], float], hosts: Sequence[str]) -> str:
    """Return GB/s between every two nodes, one direction: the darker the faster. ``pairs`` may name each once."""
    index = {host: number for number, host in enumerate(hosts)}
    top = max(pairs.values())
    side = max(2.6, min(8.0, 0.62 * len(hosts) + 1.0))
    with style("fabric"):
        figure = Figure(figsize=(side + 0.6, side), layout="constrained")
        axes = figure.subplots()
        for (first, second), value in pairs.items():
            _cell(axes, index[first], index[second], value, top, len(hosts))
            _cell(axes, index[second], index[first], value, top, len(hosts))
        axes.set(xlim=(-0.5, len(hosts) - 0.5), ylim=(len(hosts) - 0.5, -0.5), aspect="equal")
        axes.set_xticks(range(len(hosts)), hosts, rotation=0 if len(hosts) < 9 else 90)
        axes.set_yticks(range(len(hosts)), hosts)
        axes.tick_params(labelcolor=INK)
        axes.spines["bottom"].set_visible(False)
        return to_svg(figure, "fabric", f"Exchange between {len(hosts)} nodes, at best {top:.3g} GB/s")


def _cell(axes: Axes, column: int, row: int, value: float, top: float, hosts: int) -> None:
    strength = 0.12 + 0.88 * value / top if top else 0.12
    axes.add_patch(
        Rectangle((column - 0.47, row - 0.47), 0.94, 0.94, color=COLOURS["communication"], alpha=strength, linewidth=0)
    )
    if hosts <= 16:
        axes.text(column, row, f"{value:.3g}", ha="center", va="center", fontsize=8.5 if hosts < 9 else 6.5)


def providers(rows: Sequence[Comparison], paid: tuple[str, str]) -> str:
    """Return the same GPU-hours at each rate, cheapest first; the paid one stands out, all but on-demand are pale."""
    with style("providers"):
        figure, axes = _figure(0.25 * len(rows) + 0.5)
        top = max(row.micro_usd for row in rows) / MICRO_USD_PER_USD
        for number, row in enumerate(rows):
            _offer(axes, number, row, (row.provider, row.sku) == paid)
        axes.set_yticks(range(len(rows)), [f"{row.provider}  {row.sku}" for row in rows], fontsize=8)
        _rows(axes, len(rows))
        axes.set_xlim(0, top * 1.22 or 1)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short_usd(value)))
        return to_svg(figure, "providers", f"The same GPU-hours at {len(rows)} rates")


def _offer(axes: Axes, number: int, row: Comparison, mine: bool) -> None:
    value = row.micro_usd / MICRO_USD_PER_USD
    colour = "productive" if mine else "startup" if row.mode == "on-demand" else "idle"
    axes.barh(number, value, height=0.62, color=COLOURS[colour], linewidth=0)
    text = f"{show_usd(row.micro_usd)} · ${rate(row.usd_per_gpu_hour)}/h" + (" · paid" if mine else "")
    weight = "bold" if mine else "normal"
    where: Any = {"textcoords": "offset points", "va": "center", "fontsize": 8, "fontweight": weight}
    axes.annotate(text, (value, number), (5, 0), **where)


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots()
    axes.xaxis.grid(True)
    return figure, axes


def _rows(axes: Axes, number: int) -> None:
    axes.set_ylim(number - 0.4, -0.6)
    axes.spines["bottom"].set_visible(False)


def _time_unit(seconds: float) -> tuple[str, float]:
    return ("minutes", 60.0) if seconds < 3 * 3600 else ("hours", 3600.0) if seconds < 72 * 3600 else ("days", 86400.0)


def _short_usd(dollars: float) -> str:
    return f"${dollars:,.0f}" if dollars >= 100 or dollars == int(dollars) else f"${dollars:,.2f}"
