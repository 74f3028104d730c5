"""The command line as a user meets it: messages on standard error, and exit codes."""

import errno
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from steelrail import cli
from steelrail.launch import status

DEMO = Path("config/demo.yaml").read_text()


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before, level


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """The demo on this host alone, with its results in a folder of the test's own."""
    path = tmp_path / "demo.yaml"
    text = DEMO.replace("name: demo\n", f"name: demo\nresults: {tmp_path / 'results'}\n")
    assert "\nslurm:\n" in text
    path.write_text(text.replace("\nslurm:\n", "\nslurm:\n  executor: local\n"))
    return path


def said(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().err
    assert "Traceback" not in text
    return text


@pytest.mark.parametrize("verb", ["plan", "status", "logs", "stop", "train", "cost"])
def test_results_that_are_a_file_are_refused_by_every_command(
    run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    (tmp_path / "results").touch()
    assert 2 == cli.main([verb, "--config", str(run_file)])
    assert f"results folder must be a folder, is not one ({tmp_path / 'results'})" in said(capsys)


@pytest.mark.parametrize("place", ["/proc/nothing/x.log", "{here}/demo.yaml/x.log", "{here}"])
def test_a_log_that_cannot_be_written_is_one_message(
    run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    path = place.format(here=tmp_path)
    assert 2 == cli.main(["status", "--config", str(run_file), "--log", path])
    assert f"({path}): name another in --log" in said(capsys)


def test_a_full_file_system_is_one_message_whoever_meets_it(
    run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(status, "status", full)
    assert 6 == cli.main(["status", "--config", str(run_file)])
    assert "file system of the results folder must be able to take more bytes, is full" in said(capsys)


@pytest.mark.parametrize("verb", ["status", "stop"])
def test_a_damaged_list_of_jobs_is_one_message(
    run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    folder = tmp_path / "results" / "demo" / "train" / "0123456789ab"
    folder.mkdir(parents=True)
    (folder / "jobs.json").touch()
    (folder / "ledger.jsonl").touch()
    assert 3 == cli.main([verb, "--config", str(run_file)])
    assert "list of jobs must be as it was written, is damaged" in said(capsys)


def test_a_damaged_ledger_is_one_message(run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "results" / "demo" / "train" / "0123456789ab"
    folder.mkdir(parents=True)
    (folder / "ledger.jsonl").write_text("{}\n")
    for verb in ("status", "logs"):
        assert 3 == cli.main([verb, "--config", str(run_file)])
        assert f"{folder / 'ledger.jsonl'}, line 1" in said(capsys)


def test_sigterm_ends_a_command_with_a_message_and_leaves_no_handler(
    run_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        monkeypatch.setattr(status, "status", lambda _: os.kill(os.getpid(), signal.SIGTERM))
        assert 143 == cli.main(["status", "--config", str(run_file)])
        assert signal.SIG_DFL is signal.getsignal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert f"ended by SIGTERM; jobs in Slurm go on: steelrail status --config {run_file}" in said(capsys)


def test_a_caller_that_hears_sigterm_itself_goes_on_doing_so(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        monkeypatch.setattr(status, "status", lambda _: os.kill(os.getpid(), signal.SIGTERM))
        cli.main(["logs", "--config", str(run_file)])
        with pytest.raises(AttributeError):
            cli.main(["status", "--config", str(run_file)])  # goes on, with what ``kill`` returned
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [signal.SIGTERM] == heard
