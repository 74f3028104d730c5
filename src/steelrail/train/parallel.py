"""Laying one model over many ranks with torch's FSDP2, on GPUs and CPUs alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from steelrail.config.schema import Model
from steelrail.train.initial import fill_rows
from steelrail.train.model import Llama


def make_mesh(device_type: str, num_ranks: int, num_replicas: int = 1) -> DeviceMesh:
    """Return the mesh of all ranks: a shard axis, before it a replica axis where ``num_replicas`` is above 1."""
    if num_replicas == 1:
        return init_device_mesh(device_type, (num_ranks,), mesh_dim_names=("shard",))
    return init_device_mesh(device_type, (num_replicas, num_ranks // num_replicas), mesh_dim_names=("replica", "shard"))


def build_model(
    shape: Model,
    mesh: DeviceMesh,
    device: torch.device,
    precision: Literal["bf16", "fp32"],
    recompute: bool,
    regather: bool,
) -> Llama:
    """Return the sharded model; its weights hold nothing yet: ``initialise``, ``read_weights``, or restore.

    Made without memory first, so that no rank ever holds more than its shard and one gathered block. Master weights
    are float32 DTensors over ``mesh``. ``regather``: see ``shard``.
    """
    with torch.device("meta"):
        model = Llama(shape, recompute)
    shard(model, mesh, precision, regather)
    model.to_empty(device=device)
    return model


def shard(model: Llama, mesh: DeviceMesh, precision: Literal["bf16", "fp32"], regather: bool) -> None:
    """Shard each block and the rest of the model over ``mesh``; gradients become plain sums over all ranks.

    With ``regather`` blocks free their gathered weights after the forward pass and gather them again for the backward
    pass, except the last, which is needed at once.
    An embedding of its own is gathered apart from the head, since the two are needed at opposite ends.
    """
    policy = mixed_precision(precision)
    for block in model.blocks:
        fully_shard(
            block, mesh=mesh, mp_policy=policy, reshard_after_forward=regather and block is not model.blocks[-1]
        )
    if model.head is not None:
        fully_shard(model.embedding, mesh=mesh, mp_policy=policy, reshard_after_forward=regather)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    for module in fsdp_modules(model):
        # The loss is divided by the tokens of the global batch before backward: a sum is right for any split.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def mixed_precision(precision: Literal["bf16", "fp32"]) -> MixedPrecisionPolicy:
    """Return the policy: bfloat16 compute with float32 reduction, or float32 throughout."""
    if precision == "fp32":
        return MixedPrecisionPolicy(cast_forward_inputs=False)
    # Inputs are token ids, and RoPE's tables must stay float32: nothing is to be cast on the way in.
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)


def fsdp_modules(model: nn.Module) -> list[FSDPModule]:
    """Return every module that FSDP shards on its own, the root first."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def as_fsdp(model: nn.Module) -> FSDPModule:
    """Return the model as what ``fully_shard`` made of it."""
    return cast(FSDPModule, model)


@torch.no_grad()
def initialise(model: Llama, seed: int, beat: Callable[[], None]) -> None:
    """Fill every parameter's local rows with its random first values: a function of (seed, parameter, row) only."""
    for name, parameter in model.named_parameters():
        beat()
        rows = local_rows(cast(DTensor, parameter))
        fill_rows(local(parameter), name, tuple(parameter.shape), rows.start, model.shape.num_layers, seed)


def local_rows(parameter: DTensor) -> range:
    """Return which rows (dim 0) of the whole parameter this rank holds: FSDP cuts as ``torch.chunk`` does."""
    mesh = parameter.device_mesh
    num_shards = mesh.size(mesh.ndim - 1)
    length = -(-parameter.shape[0] // num_shards)
    start = min(parameter.shape[0], mesh.get_local_rank(mesh.ndim - 1) * length)
    return range(start, min(parameter.shape[0], start + length))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a DTensor, sharing its memory."""
    with torch.no_grad():
        return cast(DTensor, tensor).to_local()
