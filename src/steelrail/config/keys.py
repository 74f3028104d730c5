"""Stage keys: what a stage's result depends on, hashed. Pure.

A key holds the stage's own view of the configuration and its VERSION; input digests join where they are known
(``shards`` and ``train``). Placement never enters: more nodes, another partition or a new price leave the
model as it is.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from steelrail.config.schema import BadStep, Run

# Raise a stage's number when what it writes changes meaning: every run then repeats that stage.
VERSIONS = {"corpus": 1, "shards": 1, "fabric": 1, "train": 1, "cost": 2}
KEY_LENGTH = 12


def digest(value: Any) -> str:
    """Return the hex SHA-256 of a JSON-able value in canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def corpus_key(run: Run, listing_digest: str) -> str:
    """Key of the corpus manifest: the settings and what the listing found."""
    return _key("corpus", {"corpus": run.corpus.model_dump(mode="json"), "listing": listing_digest})


def shards_key(run: Run, tokenizer_digest: str) -> str:
    """Key of the shards' settings: everything but where the jobs run. Data enter through the corpus manifest."""
    placement = {"partition", "cpus", "memory_mb", "minutes", "tokenizer"}
    return _key(
        "shards", {"shards": run.shards.model_dump(mode="json", exclude=placement), "tokenizer": tokenizer_digest}
    )


def fabric_key(run: Run) -> str:
    """Key of the baseline: shape, thresholds and the message sizes that the model makes."""
    sizes = {"model": run.train.model.model_dump(mode="json"), "precision": run.train.precision}
    shape = run.shape.model_dump(mode="json", exclude={"rack_wait_minutes"})
    return _key(
        "fabric",
        {"fabric": run.fabric.model_dump(mode="json"), "shape": shape, "partition": run.slurm.partition, **sizes},
    )


def train_settings_key(run: Run) -> str:
    """Key of what the run file says about the mathematics; known before any data is."""
    return _key("train", _mathematics(run))


def train_key(run: Run, data_digest: str, init_digest: str | None) -> str:
    """Key of the trained model: mathematics, data and initial weights. Checkpoints live under ``<run>/<key>/``."""
    return _key("train", {**_mathematics(run), "data": data_digest, "init": init_digest})


def cost_key(run: Run, price_book_digest: str) -> str:
    """Key of the bill: prices and how they are chosen."""
    settings = run.cost.model_dump(mode="json", exclude={"budget_usd", "price_book"})
    return _key("cost", {"cost": settings, "prices": price_book_digest})


def _mathematics(run: Run) -> dict[str, Any]:
    placement = {"micro_batch_sequences", "recompute", "init_from", "export", "bad_step"}
    return {"train": run.train.model_dump(mode="json", exclude=placement), **_bad_steps(run.train.bad_step)}


def _bad_steps(settings: BadStep) -> dict[str, Any]:
    """A run that stops at a bad step computes what it would without one: only steps left out are mathematics."""
    if settings.policy == "stop":
        return {}
    spikes = {"spike_factor", "spike_window"} if settings.spike_factor is not None else set()
    windows = {"back_steps", "leave_out_steps"} if settings.policy == "roll_back" else set()
    return {"bad_step": settings.model_dump(mode="json", include={"policy"} | spikes | windows)}


def _key(stage: str, view: dict[str, Any]) -> str:
    return digest({"stage": stage, "version": VERSIONS[stage], **view})[:KEY_LENGTH]
