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
from steelrail.launch.ledger import Entry
from steelrail.launch.queued import job_words

_POLL_SECONDS = 0.5


def lines(run: Run, follow: bool = False) -> Iterator[str]:
    """Yield the lines of the newest attempt's log; with ``follow`` go on as it grows, over attempts, until it is over.

    Raises ``InputError`` that says how the job stands when no attempt was ever started, or left no log.
    """
    folder = newest_folder(run)
    began = ledger.read(folder) if folder is not None else ()
    if folder is None or not began:
        raise InputError(_not_begun(run, folder))
    attempt = began[-1].attempt
    while True:
        yield from _lines_of(folder, attempt, follow)
        entries = ledger.read(folder)
        later = [entry.attempt for entry in entries if entry.attempt > attempt]
        if not follow or (not later and entries[-1].action is not None and entries[-1].action in ("finish", "stop")):
            if not folder.log(attempt).exists():
                raise InputError(_no_log(run, folder, entries[-1]))
            return
        if later:
            attempt = later[0]
        else:
            clock.sleep(_POLL_SECONDS)


def newest_folder(run: Run) -> RunFolder | None:
    """Return the run folder in which something happened last; none when no attempt was ever started."""
    train = results_folder(run) / "train"
    ledgers = list(train.glob("*/ledger.jsonl")) if train.is_dir() else []
    return RunFolder(max(ledgers, key=lambda path: path.stat().st_mtime).parent) if ledgers else None


def _not_begun(run: Run, folder: RunFolder | None) -> str:
    """Say that there is no attempt, and what there is: a job that waits is no reason to run train again."""
    train = results_folder(run) / "train"
    kept = sorted(train.glob("*/jobs.json")) if train.is_dir() else []
    known = folder or (RunFolder(kept[-1].parent) if kept else None)
    said, do = job_words(run, known), "run train first, or wait for its job to start (steelrail status)"
    return must(f"run {run.name}", "started", f"without an attempt: {said}", train, do)


def _no_log(run: Run, folder: RunFolder, entry: Entry) -> str:
    if entry.ending is not None:
        said = f"missing: no rank was started ({entry.ending.value}: {entry.reason})"
    else:
        said = f"missing: its ranks have not written yet; {job_words(run, folder)}"
    do = "look again later, or see steelrail status"
    return must(f"log of attempt {entry.attempt}", "there", said, folder.log(entry.attempt), do)


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
