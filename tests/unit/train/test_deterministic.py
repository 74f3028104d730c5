import json
from typing import Any

import pytest

from steelrail.config.schema import Run, Shape
from steelrail.errors import ConfigError
from steelrail.train.deterministic import choices, departure, num_channels, pinned

VERSIONS = {"torch": "2.11.0", "nccl": "2.28.9"}
PINNED = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_MIN_CTAS": "16", "NCCL_MAX_CTAS": "16"}


def run_of(environment: dict[str, str] | None = None, nodes: int = 4, device: str = "cuda", **train: Any) -> Run:
    model = {"dim": 64, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "ffn_dim": 64, "vocab_size": 64}
    fields = {
        "name": "x",
        "corpus": {"paths": ["x"]},
        "shards": {"tokenizer": "x"},
        "shape": {"nodes": nodes, "gpus_per_node": 8, "ranks_per_node": 8, "device": device},
        "slurm": {"environment": environment or {}},
        "store": {"bucket": "bucket"},
        "train": {
            "model": model,
            "optimizer": {"learning_rate": 0.1},
            "steps": 1,
            "global_batch_sequences": 64,
            **train,
        },
    }
    return Run.model_validate_json(json.dumps(fields))


def kept(run: Run, environment: dict[str, str], versions: dict[str, str] = VERSIONS) -> dict[str, str]:
    return choices(run, environment, versions)


def test_algorithm_protocol_and_channels_are_pinned() -> None:
    assert pinned(run_of(), {}) == PINNED


@pytest.mark.parametrize("run", [run_of(device="cpu"), run_of(deterministic=False)])
def test_nothing_is_pinned_on_the_cpu_or_out_of_the_mode(run: Run) -> None:
    assert pinned(run, {}) == {}


def test_what_the_user_set_stays_his() -> None:
    found = pinned(run_of(), {"NCCL_ALGO": "allreduce:tree", "NCCL_MAX_NCHANNELS": "4"})
    assert found == {"NCCL_PROTO": "Simple"}


@pytest.mark.parametrize(
    ("nodes", "rails", "expected"), [(1, 8, 24), (4, 8, 16), (4, 4, 16), (4, 1, 4), (4, 16, 32), (4, 64, 32)]
)
def test_channels_are_those_that_nccl_takes_itself(nodes: int, rails: int, expected: int) -> None:
    shape = {"nodes": nodes, "gpus_per_node": 8, "ranks_per_node": 8, "rails": rails}
    assert num_channels(Shape.model_validate(shape)) == expected


def test_a_checkpoint_says_settings_mesh_and_versions() -> None:
    assert kept(run_of(), {**PINNED, "HOME": "/home/me"}) == {
        **{f"setting.{name}": value for name, value in PINNED.items()},
        "mesh.world_size": "32",
        "mesh.ranks_per_node": "8",
        "version.torch": "2.11.0",
        "version.nccl": "2.28.9",
    }


def test_on_the_cpu_the_threads_of_a_rank_are_part_of_the_mesh() -> None:
    assert kept(run_of(device="cpu"), {})["mesh.cpus_per_rank"] == "8"


def test_out_of_the_mode_a_checkpoint_says_nothing() -> None:
    assert kept(run_of(deterministic=False), PINNED) == {}


def test_the_same_choices_go_on_without_a_word() -> None:
    run = run_of()
    assert departure(run, {"attempt": 1, **kept(run, PINNED)}, kept(run, PINNED), 50) is None


def test_another_setting_on_the_same_mesh_is_refused() -> None:
    run = run_of()
    with pytest.raises(ConfigError, match=r"NCCL_ALGO must be Ring, as at step 50, is Tree .*slurm.environment"):
        departure(run, kept(run, PINNED), kept(run, {**PINNED, "NCCL_ALGO": "Tree"}), 50)


@pytest.mark.parametrize(("before", "now"), [({}, {"NCCL_BUFFSIZE": "1"}), ({"NCCL_BUFFSIZE": "1"}, {})])
def test_a_setting_that_came_or_went_is_refused_too(before: dict[str, str], now: dict[str, str]) -> None:
    run = run_of()
    with pytest.raises(ConfigError, match=r"NCCL_BUFFSIZE must be .*not set"):
        departure(run, kept(run, {**PINNED, **before}), kept(run, {**PINNED, **now}), 50)


def test_another_setting_that_the_run_file_states_is_said() -> None:
    run = run_of(environment={"NCCL_ALGO": "Tree"})
    said = departure(run, kept(run, PINNED), kept(run, {**PINNED, "NCCL_ALGO": "Tree"}), 50)
    assert said == "equality to the last bit ends at step 50: NCCL_ALGO was Ring, is Tree"


def test_another_mesh_is_said_and_takes_its_own_settings() -> None:
    four, two = run_of(), run_of(nodes=1)
    said = departure(two, kept(four, PINNED), kept(two, pinned(two, {})), 50)
    assert said is not None and said.startswith("equality to the last bit ends at step 50: world_size was 32, is 8")
    assert "NCCL_MAX_CTAS was 16, is 24" in said


def test_another_version_is_said() -> None:
    run = run_of()
    said = departure(run, kept(run, PINNED), kept(run, PINNED, {**VERSIONS, "nccl": "2.29.1"}), 50)
    assert said == "equality to the last bit ends at step 50: nccl was 2.28.9, is 2.29.1"


def test_a_checkpoint_that_says_nothing_leaves_equality_unknown() -> None:
    said = departure(run_of(), {"attempt": 1}, kept(run_of(), PINNED), 50)
    assert said is not None and said.startswith("equality to the last bit is not known")
