"""How Snakemake ends: with the one message and the exit code of what failed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from steelrail.artifacts.corpus import Listing
from steelrail.chain import Chain, _train_rule_key, leave_word, one_message
from steelrail.config.load import load_run
from steelrail.errors import BusyError, InputError, StoreError


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    run = load_run("config/demo.yaml")
    (tmp_path / "logs").mkdir()
    return Chain("config/demo.yaml", run, str(tmp_path), True, Listing(objects=(), digest=""), *["key"] * 5)


def log(chain: Chain, stage: str) -> str:
    return f"{chain.folder}/logs/{stage}.log"


def test_an_error_of_ours_ends_with_its_message_and_exit_code_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, one_message():
        raise InputError("corpus must be there, is not (x): add it")
    assert (3, "corpus must be there, is not (x): add it\n") == (ended.value.code, capsys.readouterr().err)


def test_snakemake_ends_as_the_stage_that_failed(chain: Chain, capsys: pytest.CaptureFixture[str]) -> None:
    leave_word(log(chain, "train"), StoreError("store must be up, is down (s3): start it"))
    with pytest.raises(SystemExit) as ended:
        chain.fail()
    assert (5, "store must be up, is down (s3): start it\n") == (ended.value.code, capsys.readouterr().err)


def test_a_stage_that_works_again_leaves_no_word(chain: Chain) -> None:
    leave_word(log(chain, "train"), StoreError("x"))
    leave_word(log(chain, "train"), None)
    assert chain.fail() is None  # type: ignore[func-returns-value]


def test_a_second_snakemake_is_refused_and_told_who_holds_the_run(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", {})
    chain.start()
    with pytest.raises(BusyError, match=r"driven by one Snakemake, is driven by process \d+ on "):
        chain.start()


def test_other_initial_weights_run_train_again(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    run = load_run("config/demo.yaml")
    keys = {_train_rule_key(run, tmp_path)}
    tuned = run.model_copy(update={"train": run.train.model_copy(update={"init_from": str(weights)})})
    for content in ("first", "other weights"):
        (weights / "model.safetensors").write_text(content)
        keys.add(_train_rule_key(tuned, tmp_path))
    assert 3 == len(keys)


def test_snakemake_does_not_start_with_weights_that_do_not_fit(chain: Chain, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    tuned = chain.run.model_copy(update={"train": chain.run.train.model_copy(update={"init_from": str(weights)})})
    with pytest.raises(InputError, match="weights must be a safetensors file"):
        replace(chain, run=tuned).start()
    assert not Path(chain.listing).exists()
