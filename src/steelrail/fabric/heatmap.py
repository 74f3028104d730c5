"""The picture of the links: a matrix of pairs in GB/s, as SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from steelrail.artifacts.fabric import FabricReport, PairMeasurement

_MAX_LABELLED = 16
Matrix = npt.NDArray[np.float64]


def draw_heatmap(report: FabricReport) -> bytes:
    """Return an SVG of the pair matrix: between nodes where there are several, else between the GPUs of the node."""
    pairs = [pair for pair in report.pairs if "/" not in pair.first] or list(report.pairs)
    names, rates = pair_matrix(pairs)
    side = min(14.0, 2.6 + 0.75 * len(names))
    figure = Figure(figsize=(side + 1.4, side), layout="constrained")
    if names:
        _draw(figure, names, rates)
    figure.suptitle(f"{report.run}: {_what(pairs, report)}", fontsize=11)
    return _svg(figure)


def pair_matrix(pairs: Iterable[PairMeasurement]) -> tuple[list[str], Matrix]:
    """Return names and the symmetric matrix of GB/s; the slowest rail counts, what was not measured is NaN."""
    rows = list(pairs)
    names = list(dict.fromkeys(name for pair in rows for name in (pair.first, pair.second)))
    names.sort(key=_natural)
    rates = np.full((len(names), len(names)), np.nan)
    for pair in rows:
        place = names.index(pair.first), names.index(pair.second)
        rates[place] = rates[place[::-1]] = np.fmin(rates[place], pair.gb_per_s)
    return names, rates


def _draw(figure: Figure, names: list[str], rates: Matrix) -> None:
    axes = figure.add_subplot()
    axes.set_facecolor("#e6e6e6")
    image = axes.imshow(np.ma.masked_invalid(rates), cmap="viridis", vmin=0.0, vmax=float(np.nanmax(rates)))
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names)
    figure.colorbar(image, ax=axes, label="GB/s, one direction", shrink=0.8)
    if len(names) <= _MAX_LABELLED:
        _write_rates(axes, rates)


def _write_rates(axes: Axes, rates: Matrix) -> None:
    bright = 0.6 * float(np.nanmax(rates))
    for (row, column), rate in np.ndenumerate(rates):
        if np.isfinite(rate):
            colour = "black" if rate > bright else "white"
            axes.text(column, row, f"{rate:.3g}", ha="center", va="center", color=colour, fontsize=9)


def _what(pairs: list[PairMeasurement], report: FabricReport) -> str:
    if not pairs:
        return "one rank, no links"
    return f"exchange of {pairs[0].size_bytes / 1e6:g} MB, {report.backend}, {'fit' if report.fit else 'unfit'}"


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts node2 before node10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


def _svg(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    # Without a date and with a fixed salt the same report gives the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "steelrail", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
