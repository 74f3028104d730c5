import os
import time

import pytest
from rundir import write_fabric, write_inputs

from steelrail.artifacts.files import results_folder, write_artifact
from steelrail.errors import ConfigError, InputError
from steelrail.launch.freeze import run_folder
from steelrail.launch.inputs import (
    admitting_fabric,
    check_inputs,
    folder_digest,
    left_out,
    read_inputs,
    receipt_warnings,
    require_weights,
)


def weights(tmp_path, content=b"weights"):
    folder = tmp_path / "init"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(content)
    (folder / "config.json").write_text("{}")
    return folder


def test_without_data_shards_the_message_names_the_stage(here):
    with pytest.raises(InputError, match="run steelrail shards gather"):
        read_inputs(here)


def test_other_data_give_another_key(here):
    assert write_inputs(here, "one").key != write_inputs(here, "two").key


def test_the_digest_of_weights_follows_their_content_and_names_only(tmp_path):
    folder = weights(tmp_path)
    first = folder_digest(folder, tmp_path / "cache.json")
    os.utime(folder / "model.safetensors", (1, 1))
    assert folder_digest(folder, tmp_path / "cache.json") == first
    assert folder_digest(weights(tmp_path, b"weights2"), tmp_path / "cache.json") != first


def test_weights_are_read_once_while_they_are_not_touched(tmp_path, monkeypatch):
    from steelrail.launch import inputs

    folder = weights(tmp_path)
    first = folder_digest(folder, tmp_path / "cache.json")
    monkeypatch.setattr(inputs, "sha256_file", lambda path: pytest.fail("read again"))
    assert folder_digest(folder, tmp_path / "cache.json") == first


def test_missing_weights_are_an_error(tmp_path):
    with pytest.raises(InputError, match=r"train.init_from must be a folder"):
        folder_digest(tmp_path / "nowhere", tmp_path / "cache.json")


def test_initial_weights_that_are_no_longer_those_of_the_key_are_refused(here, change, tmp_path):
    run = change(here, "train", init_from=str(weights(tmp_path)))
    inputs = write_inputs(run, "data")
    folder = run_folder(run, inputs.key)
    write_artifact(folder.shards_manifest, inputs.manifest)
    write_inputs(run, "other data")  # the run's, not this key's
    require_weights(run, folder)
    weights(tmp_path, b"weights2")
    with pytest.raises(InputError, match=f"initial weights must be those of key {inputs.key}, is changed"):
        require_weights(run, folder)


def test_a_tokenizer_larger_than_the_model_is_refused(here):
    inputs = write_inputs(here, "data")
    assert check_inputs(here, inputs) is None
    model = here.train.model.model_copy(update={"vocab_size": 8191})
    small = here.model_copy(update={"train": here.train.model_copy(update={"model": model})})
    with pytest.raises(ConfigError, match="at least the tokenizer's 8192, is 8191"):
        check_inputs(small, inputs)


def test_a_receipt_that_counts_is_the_baseline_and_keeps_its_nodes_out(here):
    report = write_fabric(here, exclude=("node3",))
    assert (admitting_fabric(here), left_out(here), receipt_warnings(here)) == (report, ("node3",), [])


def test_a_stale_receipt_is_told_in_one_line_with_its_age_and_what_to_run_and_blocks_nothing(here):
    measured = time.time() - 9.5 * 86400
    write_fabric(here, exclude=("node3",), measured=measured, valid_until=measured + 7 * 86400)
    (said,) = receipt_warnings(here)
    assert "fabric receipt must be younger than 7 d 0 h (fabric.valid_hours), is 9 d 12 h old" in said
    assert "run steelrail fabric on this run file" in said and "training goes on" in said and "\n" not in said
    assert (admitting_fabric(here), left_out(here)) == (None, ())


def test_a_run_without_a_receipt_is_told_so(here):
    (said,) = receipt_warnings(here)
    assert "fabric receipt must be there, is missing" in said
    assert left_out(here) == ()


def test_a_receipt_that_cannot_be_read_blocks_nothing(here):
    path = results_folder(here) / "fabric" / "report.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    (said,) = receipt_warnings(here)
    assert "fabric report must be as it was written" in said and "training goes on" in said
    assert (admitting_fabric(here), left_out(here)) == (None, ())
