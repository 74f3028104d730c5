"""The random generators of one rank, those that torch draws from unless told otherwise: the CPU's and its GPU's.

Their state goes along with every checkpoint, as tensors of bytes (safetensors; nothing is pickled). At another world
size there is no state to go on from: every rank then draws anew, from a seed of its own.
"""

from __future__ import annotations

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from steelrail.errors import CheckpointError, must
from steelrail.train.initial import seed_of

_CPU, _CUDA = "cpu", "cuda"


def seed_generators(seed: int, rank: int, world_size: int, step: int) -> None:
    """Seed the generators of this rank, unlike any other rank's: ranks forked from one process share theirs."""
    torch.manual_seed(seed_of(seed, f"rank {rank} of {world_size}", step))


def generator_state(device: torch.device) -> bytes:
    """Return where the generators stand that this rank draws from. Some 5 kB; waits for no device."""
    state = {_CPU: torch.get_rng_state()}
    if device.type == "cuda":
        state[_CUDA] = torch.cuda.get_rng_state(device)
    return save(state)


def set_generators(data: bytes, device: torch.device) -> None:
    """Let the generators go on where ``data`` says. Raises ``CheckpointError`` when it is not of such a device."""
    wanted = {_CPU, _CUDA} if device.type == "cuda" else {_CPU}
    try:
        state: dict[str, Tensor] = load(data)
        if state.keys() != wanted:
            raise ValueError(f"of {', '.join(sorted(state)) or 'none'}")
        torch.set_rng_state(state[_CPU])
        if _CUDA in wanted:
            torch.cuda.set_rng_state(state[_CUDA], device)
    except (SafetensorError, ValueError, RuntimeError, TypeError) as error:
        do = "resume on the kind of device that wrote it"
        raise CheckpointError(
            must(
                "state of the random generators", f"of {' and '.join(sorted(wanted))}", f"not ({error})", "restore", do
            )
        ) from error
