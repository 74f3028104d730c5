"""What training starts from, and the key it gives: the shards manifest and the initial weights. An edge."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from steelrail.artifacts.fabric import FabricReport
from steelrail.artifacts.files import read_artifact, results_folder, write_whole
from steelrail.artifacts.shards import ShardsManifest
from steelrail.artifacts.trainer import RunFolder
from steelrail.clients import clock
from steelrail.clients.disk import sha256_file
from steelrail.config import keys
from steelrail.config.schema import Run
from steelrail.errors import ConfigError, InputError, must
from steelrail.fabric.receipt import Lapse, lapse


@dataclass(frozen=True)
class Inputs:
    """The inputs of training. ``key`` names the trained model; ``init_digest`` is none for random weights."""

    key: str
    manifest: ShardsManifest
    init_digest: str | None


def read_inputs(run: Run) -> Inputs:
    """Return the inputs of a run. Raises ``InputError`` when a stage before is missing or weights are not there."""
    results = results_folder(run)
    manifest = read_artifact(results / "shards" / "manifest.json", ShardsManifest)
    init = run.train.init_from
    digest = None if init is None else folder_digest(Path(init), results / "train" / "digests.json")
    return Inputs(keys.train_key(run, manifest.data_digest, digest), manifest, digest)


def require_weights(run: Run, folder: RunFolder) -> None:
    """Raise ``InputError`` when the initial weights are no longer those of the key of ``folder``."""
    init = run.train.init_from
    if init is None:
        return
    manifest = read_artifact(folder.shards_manifest, ShardsManifest)
    digest = folder_digest(Path(init), folder.root.parent / "digests.json")
    if keys.train_key(run, manifest.data_digest, digest) != folder.root.name:
        do = "put them back, or run train again: other weights make another model, of a key of its own"
        raise InputError(must("initial weights", f"those of key {folder.root.name}", "changed", init, do))


def read_fabric(run: Run) -> FabricReport | None:
    """Return the baseline of the fabric stage, or none when it was not made."""
    path = _fabric_report(run)
    return read_artifact(path, FabricReport) if path.exists() else None


def admitting_fabric(run: Run) -> FabricReport | None:
    """Return the baseline while its receipt counts (fit, same key, in its time); one that lapsed is no measure."""
    try:
        report = read_fabric(run)
    except InputError:  # receipt_warnings says so, once, before the job is submitted
        return None
    return report if report is not None and lapse(report, clock.now(), run) is None else None


def left_out(run: Run) -> tuple[str, ...]:
    """Return the nodes that the fabric stage found unfit and others took the place of, while its receipt counts."""
    report = admitting_fabric(run)
    return report.exclude if report is not None else ()


def receipt_warnings(run: Run) -> list[str]:
    """Return what a user should know of the receipt before training starts: that there is none, or why it lapsed.

    It keeps nothing from starting: on which nodes a run trains changes none of its numbers.
    """
    meanwhile = "training goes on, and each attempt checks its nodes without a baseline"
    try:
        report = read_fabric(run)
    except InputError as error:
        return [f"{error}; {meanwhile}"]
    why = Lapse("there", "missing") if report is None else lapse(report, clock.now(), run)
    if why is None:
        return []
    do = f"to measure anew run steelrail fabric on this run file; {meanwhile}"
    return [must("fabric receipt", why.be, why.actual, _fabric_report(run), do)]


def _fabric_report(run: Run) -> Path:
    return results_folder(run) / "fabric" / "report.json"


def check_inputs(run: Run, inputs: Inputs) -> None:
    """Raise ``ConfigError`` when the tokens cannot go into the model: on a GPU that would end in a device assert."""
    rows, tokens = run.train.model.vocab_size, inputs.manifest.tokenizer.vocab_size
    if tokens > rows:
        do = "raise it, or make the shards with the model's own tokenizer"
        raise ConfigError(must("train.model.vocab_size", f"at least the tokenizer's {tokens}", rows, "run file", do))


def folder_digest(folder: Path, cache: Path) -> str:
    """Return the digest of a folder's files by name and content.

    Weights of 140 GB are read once: ``cache`` keeps the digest of each file by path, size, time and inode.
    """
    if not folder.is_dir():
        do = "name a folder with safetensors files"
        raise InputError(must("train.init_from", "a folder", "missing", folder, do))
    known = _read_cache(cache)
    files = sorted(path for path in folder.iterdir() if path.is_file())
    found = {str(path.absolute()): _known_or_read(path, known) for path in files}
    if found.items() - known.items():
        write_whole(cache, json.dumps({**known, **found}, indent=1, sort_keys=True).encode())
    names = [f"{path.name} {found[str(path.absolute())].split()[-1]}" for path in files]
    return hashlib.sha256("\n".join(names).encode()).hexdigest()


def _known_or_read(path: Path, known: Mapping[str, str]) -> str:
    state = path.stat()
    looks = f"{state.st_size} {state.st_mtime_ns} {state.st_ino}"
    before = known.get(str(path.absolute()), "")
    return before if before.startswith(f"{looks} ") else f"{looks} {sha256_file(path)}"


def _read_cache(cache: Path) -> dict[str, str]:
    try:
        return dict(json.loads(cache.read_text()))
    except (OSError, ValueError, TypeError):
        return {}
