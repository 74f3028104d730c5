"""The report's page: self-contained, escaped, and complete."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import synthetic

from steelrail.artifacts.fabric import FabricReport
from steelrail.artifacts.files import read_artifact, write_artifact
from steelrail.cost import edge

EVIL = "<script>alert('x')</script>"
EVIL_HOST = "n<img onerror=alert(1)>"  # a slash would make it a GPU, which the heat map leaves out


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    built = synthetic.build(tmp_path_factory.mktemp("report"))
    edge.run_stage(built.run, built.slurm)
    return edge.summary_path(built.run).with_name("report.html").read_text()


class Strict(HTMLParser):
    """Collects elements that never close, ids, and attributes that could load something."""

    VOID = ("meta", "link", "br", "hr", "img", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open += [] if tag in self.VOID else [tag]
        self._note(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def _note(self, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset", "data")]


def parsed(page: str) -> Strict:
    found = Strict()
    found.feed(page)
    return found


def test_every_element_is_closed(page: str) -> None:
    assert parsed(page).open == []


def test_ids_are_unique_over_all_pictures(page: str) -> None:
    ids = parsed(page).ids
    assert len(ids) == len(set(ids))


def test_nothing_outside_the_page_is_referenced(page: str) -> None:
    outside = [value for value in parsed(page).loads if not value.startswith(("#", "data:,"))]
    assert (outside, re.findall(r"https?://|@import|url\((?!#)", page)) == ([], [])


def test_references_within_the_page_lead_somewhere(page: str) -> None:
    found = parsed(page)
    targets = {value[1:] for value in found.loads if value.startswith("#")} | set(re.findall(r"url\(#([^)]+)\)", page))
    assert targets <= set(found.ids)


def test_there_is_no_script(page: str) -> None:
    assert "<script" not in page and "onload" not in page


def test_the_five_pictures_are_there(page: str) -> None:
    labels = re.findall(r'<svg role="img" aria-label="([^"]+)"', page)
    assert [label.split(";")[0] for label in labels] == [
        "Cost by category",
        "5 attempts on 5 nodes over time, by category",
        "Loss and throughput against step, with restarts",
        "Exchange between 4 nodes, at best 0.129 GB/s",
        "The same GPU-hours at 14 rates",
    ]


@pytest.mark.parametrize(
    "text", ["$41.87", "runpod h100-sxm-secure", "read 2026-11-09", "0.00%", "node failure", "RESIZING", "101.2"]
)
def test_the_page_says(page: str, text: str) -> None:
    assert text in page


def test_colours_that_stand_in_for_the_pages_own_are_gone(page: str) -> None:
    assert re.findall(r"#0[1-4]0[1-4]0[1-4]", page) == []


def test_what_others_wrote_is_escaped(tmp_path: Path) -> None:
    built = synthetic.with_attempt(synthetic.build(tmp_path), 2, reason=EVIL, step_id=EVIL)
    report = tmp_path / "synthetic" / "fabric" / "report.json"
    fabric = read_artifact(report, FabricReport)
    evil = [pair.model_copy(update={"first": EVIL_HOST}) for pair in fabric.pairs]
    write_artifact(report, fabric.model_copy(update={"pairs": tuple(evil), "backend": EVIL}))
    edge.run_stage(built.run, built.slurm)
    page = edge.summary_path(built.run).with_name("report.html").read_text()
    assert "<script" not in page
    assert "<img" not in page
    assert (page.count("&lt;script&gt;"), page.count("n&lt;img")) == (3, 2)  # reason, step, backend; two axes


def test_a_run_without_metrics_or_pairs_still_has_a_page(tmp_path: Path) -> None:
    built = synthetic.build(tmp_path)
    (tmp_path / "synthetic" / "train" / "metrics.parquet").unlink()
    path = tmp_path / "synthetic" / "fabric" / "report.json"
    write_artifact(path, read_artifact(path, FabricReport).model_copy(update={"pairs": (), "world": ()}))
    edge.run_stage(built.run, built.slurm)
    page = edge.summary_path(built.run).with_name("report.html").read_text()
    assert "No metrics were kept." in page
    assert parsed(page).open == []


def page_of(built: synthetic.Synthetic) -> str:
    edge.run_stage(built.run, built.slurm)
    return edge.summary_path(built.run).with_name("report.html").read_text()


def test_a_stale_price_is_marked(tmp_path: Path) -> None:
    assert "more than 5 days before the run" in page_of(synthetic.build(tmp_path, max_age_days=5))


def test_without_accounting_the_page_says_so_and_shows_no_money(tmp_path: Path) -> None:
    built = synthetic.build(tmp_path)
    built.slurm.accounting = False
    page = page_of(built)
    assert "This bill is unavailable: this Slurm keeps no accounts that sacct can read" in page
    assert "What it cost is not known." in page
    assert re.findall(r"\$\d", re.sub(r"(?s)<section>\s*<h2>Storage.*?</section>", "", page)) == []
