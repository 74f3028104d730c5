"""The same training code over NCCL: skipped where there is no GPU."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS == 0, reason="no CUDA device here")
TWO = pytest.mark.skipif(GPUS < 2, reason="one CUDA device here")

TINY = {
    "model": {"dim": 256, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2, "ffn_dim": 768, "vocab_size": 512},
    "optimizer": {"learning_rate": 3e-3, "warmup_steps": 2},
    "steps": 20,
    "sequence_tokens": 256,
    "global_batch_sequences": 8,
    "micro_batch_sequences": 2,
    "precision": "bf16",
}
PINNED = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_MIN_CTAS": "24", "NCCL_MAX_CTAS": "24"}


def train(
    folder: Path, ranks: int, earlier: Path | None = None, variables: dict[str, str] | None = None, **changes: Any
) -> list[dict[str, Any]]:
    """Train on ``ranks`` GPUs, on from the save of ``earlier`` if there is one; return what each rank saw, by rank."""
    folder.mkdir()
    (folder / "train.json").write_text(json.dumps({**TINY, **changes}))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, str(Path(__file__).with_name("gpu_rank.py")), str(folder / "train.json"), str(folder)]
    command += [str(earlier)] if earlier else []
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    children = [
        subprocess.Popen(
            command,
            env={**os.environ, **(variables or {}), **meeting, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [child.communicate(timeout=240)[0] for child in children]
    seen = [
        line.removeprefix("SEEN ") for output in outputs for line in output.splitlines() if line.startswith("SEEN ")
    ]
    assert len(seen) == ranks, "\n".join(outputs)
    return [json.loads(line) for line in seen]


def test_one_gpu_in_bf16_learns_and_repeats_to_the_last_bit(tmp_path: Path) -> None:
    first, second = (train(tmp_path / name, 1)[0] for name in ("first", "second"))
    assert first["losses"][-1] < first["losses"][0] - 1.0
    assert first["losses"] == second["losses"]
    assert first["grad_norms"] == second["grad_norms"]


def test_recompute_changes_no_loss(tmp_path: Path) -> None:
    plain, recomputed = (train(tmp_path / str(on), 1, recompute=on)[0] for on in (False, True))
    assert recomputed["losses"] == plain["losses"]


@TWO
def test_two_gpus_follow_one_and_their_exposed_communication_lies_within_the_step(tmp_path: Path) -> None:
    one, two = train(tmp_path / "one", 1), train(tmp_path / "two", 2)
    assert two[0]["losses"] == pytest.approx(one[0]["losses"], abs=0.05)
    for seen in two:
        assert all(0.0 <= wait <= stretch for wait, stretch in zip(seen["communication"], seen["stretch"], strict=True))
        assert sum(seen["communication"]) > 0.0


@TWO
def test_two_gpus_repeat_to_the_last_bit(tmp_path: Path) -> None:
    first, second = (train(tmp_path / name, 2)[0] for name in ("first", "second"))
    assert first["losses"] == second["losses"]


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=TWO)])
def test_a_resumed_run_is_equal_to_the_last_bit_and_its_save_says_what_was_pinned(tmp_path: Path, ranks: int) -> None:
    whole = train(tmp_path / "whole", ranks)
    resumed = train(tmp_path / "resumed", ranks, tmp_path / "whole")
    assert [seen["departed"] for seen in resumed] == [None] * ranks
    assert resumed[0]["losses"] == whole[0]["losses"][10:]
    assert resumed[0]["grad_norms"] == whole[0]["grad_norms"][10:]
    for rank in range(ranks):
        said = json.loads((tmp_path / "whole" / f"said-{rank}-10.json").read_text())
        assert {name: said.get(f"setting.{name}") for name in PINNED} == PINNED
        assert (said["mesh.world_size"], said["mesh.ranks_per_node"]) == (str(ranks), str(ranks))
        assert said["version.torch"] == torch.__version__ and said["version.nccl"].startswith("2.")


@TWO
def test_nccl_does_what_was_pinned(tmp_path: Path) -> None:
    nccl = train(tmp_path / "run", 2)[0]["nccl"]
    assert {(algorithm.upper(), protocol.upper()) for _, algorithm, protocol in nccl["ways"]} == {("RING", "SIMPLE")}
    assert {way[0] for way in nccl["ways"]} >= {"AllGather", "ReduceScatter", "AllReduce"}
    assert nccl["channels"] == 24


@TWO
def test_another_algorithm_that_nobody_stated_is_refused_at_resume(tmp_path: Path) -> None:
    train(tmp_path / "whole", 2)
    with pytest.raises(AssertionError, match="NCCL_ALGO must be Ring, as at step 10, is allreduce:tree"):
        train(tmp_path / "resumed", 2, tmp_path / "whole", {"NCCL_ALGO": "allreduce:tree"})


@TWO
def test_fp32_losses_do_not_depend_on_the_number_of_gpus(tmp_path: Path) -> None:
    one, two = (train(tmp_path / str(ranks), ranks, precision="fp32")[0] for ranks in (1, 2))
    assert two["losses"] == pytest.approx(one["losses"], abs=1e-3)
