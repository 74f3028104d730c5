"""What the Snakemake rules need to know of a run before anything starts: keys, paths, resources.

Called by ``workflow/rules/common.smk``. On the head node the corpus is listed when the rules are read, and the run is
locked when they start to run; inside a shard job only what the head wrote is read.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from steelrail.artifacts.corpus import Listing
from steelrail.artifacts.files import (
    on_results,
    read_artifact,
    require_results_place,
    results_folder,
    write_artifact,
    write_whole,
)
from steelrail.clients.disk import private_folder
from steelrail.clients.holder import Holder, this_process
from steelrail.clients.store_requests import note_answered
from steelrail.config import keys
from steelrail.config.load import load_run
from steelrail.config.prices import price_book_digest
from steelrail.config.schema import Run
from steelrail.corpus.edge import list_corpus
from steelrail.errors import BusyError, ConfigError, FullError, SteelrailError, must
from steelrail.launch.checks import check_init
from steelrail.launch.inputs import folder_digest
from steelrail.shards.edge import part_path, tokenizer_digest

RUN_NAME = "demo"
# Set for the drivers below Snakemake, so that they end when it is killed and a rerun can attach.
PARENT_VARIABLE = "STEELRAIL_PARENT"
# Beside the log of a stage that failed: its message and exit code, for Snakemake to end with.
FAILURE_SUFFIX = ".failure"


@dataclass(frozen=True)
class Chain:
    """One run as the rules see it. Keys are the stages' own; a changed key reruns the stage."""

    run_file: str
    run: Run
    folder: str
    is_head: bool
    corpus: Listing
    corpus_key: str
    shards_key: str
    fabric_key: str
    train_key: str
    cost_key: str

    @property
    def parts(self) -> list[str]:
        """Names of the shard parts, as their manifests are named: ``00``, ``01``, ..."""
        return [part_path(self.run, part).stem for part in range(self.run.shards.parts)]

    @property
    def listing(self) -> str:
        """Path of the corpus listing."""
        return f"{self.folder}/corpus/listing.json"

    def start(self) -> None:
        """Take the run's lock and keep the listing for the jobs. Called when something is about to run.

        Raises ``BusyError`` when another live process drives the same run, ``InputError`` when the initial weights do
        not fit the model: the fabric job would be paid before the training job found that.
        """
        if not self.is_head:
            return
        check_init(self.run)
        with on_results(Path(self.folder)):
            private_folder(Path(self.folder))
            _hold(_take_lock(Path(self.folder) / "snakemake.lock", self.run.name))
            os.environ[PARENT_VARIABLE] = this_process().text()
            write_artifact(Path(self.listing), self.corpus)
            note_answered(Path(self.folder), "corpus", self.corpus_key)
            for old in self._failures():
                old.unlink()

    def fail(self) -> None:
        """End Snakemake as the stage that failed ended: its message once more, last, and its exit code.

        Raises ``SystemExit``; returns when no stage left word, so that Snakemake ends in its own way.
        """
        words = [json.loads(path.read_text()) for path in self._failures()]
        for word in words:
            sys.stderr.write(f"{word['message']}\n")
        if words:
            raise SystemExit(int(words[0]["exit_code"]))

    def _failures(self) -> list[Path]:
        return sorted(Path(self.folder).glob(f"logs/*{FAILURE_SUFFIX}"))


@contextmanager
def one_message() -> Iterator[None]:
    """Let an error of ours end Snakemake as it ends ``steelrail``: one message, its exit code, and no trace."""
    try:
        yield
    except SteelrailError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(error.exit_code) from None


def leave_word(log: str, error: SteelrailError | None) -> None:
    """Keep why a stage failed beside its ``log``, or remove what an earlier failure left there."""
    path = Path(log).with_suffix(FAILURE_SUFFIX)
    if error is None:
        path.unlink(missing_ok=True)
        return
    # A place that takes no log takes no word of it either; the message itself was said.
    with suppress(FullError, OSError):
        write_whole(path, json.dumps({"exit_code": error.exit_code, "message": str(error)}).encode())


def open_chain(word: str | None, is_head: bool) -> Chain:
    """Return the chain of ``config/<word>.yaml`` (``demo`` when no word is given). Writes nothing.

    ``is_head``: this process decides what runs (it is not a job on a node).
    """
    os.umask(0o077)  # what Snakemake itself writes below the run's folder is nobody else's business either
    run_file = f"config/{word or RUN_NAME}.yaml"
    run = load_run(run_file)
    folder = results_folder(run)
    require_results_place(run)
    if is_head:
        _refuse_credentials_in_environment(run)
    # Jobs read what the head kept, so that they do not list S3 again.
    listing = list_corpus(run) if is_head else read_artifact(folder / "corpus" / "listing.json", Listing)
    return Chain(
        run_file=run_file,
        run=run,
        folder=str(folder),
        is_head=is_head,
        corpus=listing,
        corpus_key=keys.corpus_key(run, listing.digest),
        shards_key=keys.shards_key(run, tokenizer_digest(run.shards.tokenizer)),
        fabric_key=keys.fabric_key(run),
        train_key=_train_rule_key(run, folder),
        cost_key=keys.cost_key(run, price_book_digest(run.cost.price_book)),
    )


def _train_rule_key(run: Run, folder: Path) -> str:
    """Key of the train rule: what the run file says, and the initial weights. Data enter by the shards manifest."""
    init = run.train.init_from
    weights = None if init is None else folder_digest(Path(init), folder / "train" / "digests.json")
    return keys.digest([keys.train_settings_key(run), weights])[: keys.KEY_LENGTH]


def _refuse_credentials_in_environment(run: Run) -> None:
    """Snakemake's Slurm plugin hands its whole environment to jobs: a secret there would travel with them."""
    if run.slurm.executor == "slurm" and "AWS_SECRET_ACCESS_KEY" in os.environ:
        where = "environment variable AWS_SECRET_ACCESS_KEY"
        message = must(
            "S3 credentials",
            "in a file that nodes share, or a role",
            "in the environment",
            where,
            "unset it, use ~/.aws/credentials",
        )
        raise ConfigError(message)


def _take_lock(path: Path, run_name: str) -> IO[bytes]:
    # Unbuffered: what a full file system does not take must not be tried again when the file is closed.
    file = path.open("ab+", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = _named(file.read().decode(errors="replace"))
        message = must(
            f"run {run_name}", "driven by one Snakemake", f"driven by {holder}", path, "wait for it, or end it first"
        )
        raise BusyError(message) from error
    file.truncate(0)
    file.write(this_process().text().encode())
    return file


def _named(text: str) -> str:
    try:
        holder = Holder.parse(text)
    except ValueError:
        return "another process"
    return f"process {holder.pid} on {holder.host}"


# The lock lives as long as its file is open: as long as this process.
_held: list[IO[bytes]] = []


def _hold(file: IO[bytes]) -> None:
    _held.append(file)


def parent() -> Holder | None:
    """Return the Snakemake process that drives this one, or none."""
    text = os.environ.get(PARENT_VARIABLE)
    return Holder.parse(text) if text else None
