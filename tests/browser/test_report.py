"""The report in a real Chromium, without a network: clean console, nothing requested, everything drawn."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "cost"))
import synthetic

from steelrail.cost import edge

# The first run of a browser calls home, and so do its updates; none of that is the page's doing.
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-dev-shm-usage",
    "--proxy-server=127.0.0.1:9",  # a port that discards: any request fails, and shows in the net log
    "--window-size=1400,5000",
    "--hide-scrollbars",
)
CONSOLE = re.compile(r"CONSOLE[:(]")

chromium = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(chromium is None, reason="chromium is not installed: scripts/setup.sh --with chromium")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = synthetic.build(tmp_path_factory.mktemp("browser"))
    edge.run_stage(built.run, built.slurm)
    return edge.summary_path(built.run).with_name("report.html")


def browse(page: Path, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Open a page in a browser that has never run before; return what it printed."""
    assert chromium is not None
    profile = f"--user-data-dir={folder / 'profile'}"
    argv = [chromium, *QUIET, profile, "--enable-logging=stderr", "--v=0", *more, page.as_uri()]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)


def test_the_console_is_clean(report: Path, tmp_path: Path) -> None:
    done = browse(report, tmp_path, "--dump-dom")
    assert [line for line in done.stderr.splitlines() if CONSOLE.search(line)] == []


def test_a_page_with_a_fault_would_show_in_the_console(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text("<!doctype html><script>console.error('seen'); missing()</script>")
    done = browse(page, tmp_path, "--dump-dom")
    assert len([line for line in done.stderr.splitlines() if CONSOLE.search(line)]) == 2


def test_the_page_is_drawn_whole(report: Path, tmp_path: Path) -> None:
    dom = browse(report, tmp_path, "--dump-dom").stdout
    assert (dom.count("<svg"), dom.count("<section"), dom.rstrip().endswith("</html>")) == (5, 8, True)


def test_nothing_is_requested_from_any_host(report: Path, tmp_path: Path) -> None:
    log = tmp_path / "net.json"
    browse(report, tmp_path, f"--log-net-log={log}", "--dump-dom")
    assert hosts_asked(log) == set()


def test_a_page_that_asks_a_host_would_be_seen(tmp_path: Path) -> None:
    page, log = tmp_path / "asks.html", tmp_path / "net.json"
    page.write_text("<!doctype html><img src='http://asked.invalid/x.png'>")
    browse(page, tmp_path, f"--log-net-log={log}", "--dump-dom")
    assert "asked.invalid" in hosts_asked(log)


def hosts_asked(log: Path) -> set[str]:
    """Return the hosts of all http(s) requests in a net log, but for the browser's own to its maker."""
    text = log.read_text()
    try:
        events = json.loads(text)["events"]
    except json.JSONDecodeError:  # the browser ended before it closed the list
        events = json.loads(text.rstrip().rstrip(",") + "]}")["events"]
    urls = (str(event.get("params", {}).get("url", "")) for event in events)
    found = (re.match(r"https?://([^/:]+)", url) for url in urls)
    return {
        host[1] for host in found if host and not host[1].endswith((".google.com", ".googleapis.com", ".gstatic.com"))
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_paints_on_light_and_dark_paper(report: Path, tmp_path: Path, scheme: str) -> None:
    picture = tmp_path / f"{scheme}.png"
    dark = ("--blink-settings=preferredColorScheme=0",) if scheme == "dark" else ()
    browse(report, tmp_path, f"--screenshot={picture}", *dark)
    image = pytest.importorskip("PIL.Image").open(picture).convert("L")
    ground = image.getpixel((5, 5))
    assert image.size == (1400, 5000)
    assert ground > 230 if scheme == "light" else ground < 40
