"""Matplotlib figures to SVG inside a page: the page's font and colours, no outside reference, no clash of ids. Pure.

Figures are drawn in stand-in colours that no palette uses; here they become CSS variables, so that one picture reads
well on light and on dark paper.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

import matplotlib
from matplotlib.figure import Figure

INK, MUTED, LINE, PAPER = "#010101", "#020202", "#030303", "#040404"
_VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", LINE: "var(--line)", PAPER: "var(--paper)"}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "axes.titlesize": 9.5,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "text.parse_math": False,  # a price is not a formula
}


@contextmanager
def style(name: str) -> Iterator[None]:
    """Draw in the report's style; ``name`` makes the ids of the figure repeatable and its own."""
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        yield


def to_svg(figure: Figure, name: str, label: str) -> str:
    """Return a figure as an ``<svg>`` element for a page. ``label`` is read to those who cannot see it."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _inline(buffer.getvalue(), name, label)


def _inline(text: str, name: str, label: str) -> str:
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"| version="1.1"', "", text)
    text = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", re.sub(r' height="[\d.]+pt"', "", text, count=1), count=1)
    text = re.sub(r'id="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r"font: ([\d.]+)px '?DejaVu Sans'?(, ?[^;\"]*)?", r"font-size: \1px", text)
    text = re.sub(
        r"font: (bold|\d+) ([\d.]+)px '?DejaVu Sans'?(, ?[^;\"]*)?", r"font-weight: \1; font-size: \2px", text
    )
    for stand_in, variable in _VARIABLES.items():
        text = text.replace(stand_in, variable)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1).strip()
