"""What many train with today, as a peer: a rank under torchrun, FSDP2 and torch.distributed.checkpoint.

usage: torchrun ... bench/peer_torchrun.py FOLDER STEPS SAVE_EVERY VOCAB DIM LAYERS SEQUENCE

Saves into a shared folder with ``dcp.save``, goes on from the newest save with ``dcp.load``. Rank 0 writes a line a
step: attempt, step, Unix seconds. Steelrail is not imported: nothing of ours may speed it up or slow it down.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


def build(vocab: int, dim: int, layers: int) -> nn.Module:
    """A causal transformer of about the same size, sharded block by block."""
    block = nn.TransformerEncoderLayer(dim, 4, 3 * dim, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.Sequential(
        nn.Embedding(vocab, dim),
        nn.TransformerEncoder(block, layers, enable_nested_tensor=False),
        nn.Linear(dim, vocab),
    )
    for layer in model[1].layers:
        fully_shard(layer)
    fully_shard(model)
    return model


def newest(folder: Path) -> Path | None:
    """The newest save that is whole: its metadata is written last."""
    whole = sorted(path.parent for path in folder.glob("step-*/.metadata"))
    return whole[-1] if whole else None


def restore(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the newest save, and return its step."""
    found = newest(folder)
    if found is None:
        return 0
    weights, moments = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=found)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    return int(found.name.removeprefix("step-"))


def main() -> None:
    folder = Path(sys.argv[1])
    steps, save_every, vocab, dim, layers, sequence = map(int, sys.argv[2:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = build(vocab, dim, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    start = restore(folder, model, optimizer)
    loss_of = nn.CrossEntropyLoss()
    attempt = os.environ.get("SLURM_RESTART_COUNT", "0") + "." + os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    for step in range(start + 1, steps + 1):
        tokens = torch.randint(0, vocab, (1, sequence + 1))
        logits = model(tokens[:, :-1])
        loss = loss_of(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % save_every == 0:
            weights, moments = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder / f"step-{step:06d}")
        if dist.get_rank() == 0:
            with (folder / "steps.txt").open("a") as file:
                file.write(f"{attempt} {step} {time.time()}\n")
    dist.barrier()


if __name__ == "__main__":
    main()
