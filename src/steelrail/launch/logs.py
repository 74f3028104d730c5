"""``steelrail logs``: the newest attempt's log, and its growth. An edge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from steelrail.artifacts.files import results_folder
from steelrail.artifacts.trainer import RunFolder
from steelrail.clients import clock
from steelrail.config.schema import Run
from steelrail.errors import InputError, must
from steelrail.launch import ledger

_POLL_SECONDS = 0.5


def lines(run: Run, follow: bool = False) -> Iterator[str]:
    """Yield the lines of the newest attempt's log; with ``follow`` go on as it grows, over attempts, until it is over.

    Raises ``InputError`` when no attempt was ever started.
    """
    folder = newest_folder(run)
    attempt = ledger.read(folder)[-1].attempt
    while True:
        yield from _lines_of(folder, attempt, follow)
        entries = ledger.read(folder)
        later = [entry.attempt for entry in entries if entry.attempt > attempt]
        if not follow or (not later and entries[-1].action is not None and entries[-1].action in ("finish", "stop")):
            return
        if later:
            attempt = later[0]
        else:
            clock.sleep(_POLL_SECONDS)


def newest_folder(run: Run) -> RunFolder:
    """Return the run folder in which something happened last. Raises ``InputError`` when there is none."""
    train = results_folder(run) / "train"
    ledgers = list(train.glob("*/ledger.jsonl")) if train.is_dir() else []
    if not ledgers:
        raise InputError(must(f"run {run.name}", "started", "without an attempt", train, "run train first"))
    return RunFolder(max(ledgers, key=lambda path: path.stat().st_mtime).parent)


def _lines_of(folder: RunFolder, attempt: int, follow: bool) -> Iterator[str]:
    path = folder.log(attempt)
    while follow and not path.exists() and not _over(folder, attempt):
        clock.sleep(_POLL_SECONDS)
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        while True:
            over = not follow or _over(folder, attempt)
            yield from (line.rstrip("\n") for line in file)
            if over:
                return
            clock.sleep(_POLL_SECONDS)


def _over(folder: RunFolder, attempt: int) -> bool:
    return any(entry.attempt >= attempt and (entry.ended or entry.attempt > attempt) for entry in ledger.read(folder))


def tail(path: Path, count: int) -> list[str]:
    """Return the last lines of a file; none when it is not there."""
    try:
        return path.read_text(errors="replace").splitlines()[-count:]
    except OSError:
        return []
