"""What a run will need: parameters, memory per GPU, seconds per step, hours. Pure arithmetic, before anything is spent.

MFU = model FLOPs per second and rank / peak. Model FLOPs per token = 6 x N + 6 x layers x positions x dim, with N the
parameters that multiply (all but the embedding's lookup): forward 2, backward 4 per parameter; attention's two matrix
products counted once for the causal half. Recomputed work does not count. Source: PaLM, https://arxiv.org/abs/2204.02311,
appendix B, there without the causal half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from steelrail.config.schema import Model, Run, Shape
from steelrail.units import GB, SECONDS_PER_HOUR

FP32_BYTES = 4
COMPUTE_BYTES = {"bf16": 2, "fp32": 4}
# Dense bf16 without sparsity. A CPU rank's figure is one AVX2 core's rough share; nothing is billed by it.
PEAK_TFLOPS = {"h100-sxm": 989.0, "h200-sxm": 989.0, "cpu": 0.05}
# float32 without TF32, which torch leaves off.
PEAK_FP32_TFLOPS = {"h100-sxm": 67.0, "h200-sxm": 67.0, "cpu": 0.05}
MEMORY_GB = {"h100-sxm": 80.0, "h200-sxm": 141.0, "cpu": 2.0}
ASSUMED_MFU = {"h100-sxm": 0.40, "h200-sxm": 0.40, "cpu": 0.15}
# CUDA context, NCCL's buffers, cuBLAS workspace, fragmentation.
RESERVE_GB = {"h100-sxm": 5.0, "h200-sxm": 5.0, "cpu": 0.3}
# Steps in which kernels are loaded and buffers grow.
_WARM_STEPS = 3
_LOSS_CHUNK_BYTES = 3 * FP32_BYTES * 2**27


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank at the step's peak, the end of a forward pass.

    ``gradients``: those of earlier micro-batches; in a step of one they grow while activations are freed, so that only
    what exceeds the activations counts.
    """

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    reserve: int

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return self.parameters + self.gradients + self.optimizer + self.gathered + self.activations + self.reserve


@dataclass(frozen=True)
class Plan:
    """The estimate. ``communication_seconds`` is a floor: bytes over links, all overlapped, nothing else."""

    num_parameters: int
    block_parameters: int
    memory: Memory
    memory_available: int
    flops_per_token: float
    tokens_per_step: int
    compute_seconds: float
    communication_seconds: float
    step_seconds: float
    tokens_per_s: float
    hours: float
    assumed_mfu: float

    @property
    def fits(self) -> bool:
        """Whether the estimate fits into the device's memory."""
        return self.memory.total <= self.memory_available


def plan(run: Run) -> Plan:
    """Return the estimate of a whole run."""
    shape, train = run.shape, run.train
    tokens = train.global_batch_sequences * train.sequence_tokens
    flops = flops_per_token(train.model, train.sequence_tokens)
    compute = flops * tokens / (shape.world_size * peak_flops(run) * ASSUMED_MFU[shape.gpu])
    communication = communication_floor_seconds(run)
    step_seconds = max(compute, communication)
    return Plan(
        num_parameters=num_parameters(train.model),
        block_parameters=block_parameters(train.model),
        memory=memory(run),
        memory_available=round(MEMORY_GB[shape.gpu] * GB),
        flops_per_token=flops,
        tokens_per_step=tokens,
        compute_seconds=compute,
        communication_seconds=communication,
        step_seconds=step_seconds,
        tokens_per_s=tokens / step_seconds,
        hours=train.steps * step_seconds / SECONDS_PER_HOUR,
        assumed_mfu=ASSUMED_MFU[shape.gpu],
    )


def block_parameters(model: Model) -> int:
    """Parameters of one block: Llama-3-70B has 855.65 M."""
    attention = model.dim * (2 * model.dim + 2 * model.num_kv_heads * model.head_dim)
    return attention + 3 * model.dim * model.ffn_dim + 2 * model.dim


def num_parameters(model: Model) -> int:
    """Parameters of the whole model: Llama-3-70B has 70.55 G."""
    return model.num_layers * block_parameters(model) + model.dim + embedding_parameters(model)


def embedding_parameters(model: Model) -> int:
    """Parameters of the embedding and, where it has its own weights, the head."""
    return (1 if model.tied_embeddings else 2) * model.vocab_size * model.dim


def flops_per_token(model: Model, positions: int) -> float:
    """Model FLOPs to train on one token (see the head of this file)."""
    multiplying = model.num_layers * block_parameters(model) + model.dim + model.vocab_size * model.dim
    return 6.0 * multiplying + 6.0 * model.num_layers * positions * model.dim


def mfu(run: Run, tokens_per_s: float) -> float | None:
    """Return the model FLOPs achieved over the peak of all ranks; none on the CPU, whose peak nobody knows."""
    if "cpu" in (run.shape.device, run.shape.gpu):
        return None
    achieved = flops_per_token(run.train.model, run.train.sequence_tokens) * tokens_per_s
    return achieved / (run.shape.world_size * peak_flops(run))


def usual_mfu(run: Run, tokens_per_s: Sequence[float]) -> float | None:
    """Return the MFU of an attempt's middle step, its first few left out; none when it made no more than those."""
    rates = tokens_per_s[_WARM_STEPS:]
    return mfu(run, median(rates)) if rates else None


def peak_flops(run: Run) -> float:
    """Return the FLOP/s of one rank at the run's precision."""
    peaks = PEAK_FP32_TFLOPS if run.train.precision == "fp32" else PEAK_TFLOPS
    return peaks[run.shape.gpu] * 1e12


def memory(run: Run) -> Memory:
    """Return the bytes that one rank needs at its peak."""
    total, ranks = num_parameters(run.train.model), run.shape.world_size
    sharded = -(-total // ranks) * FP32_BYTES
    activations = activation_bytes(run)
    return Memory(
        parameters=sharded,
        gradients=sharded if _rounds(run) > 1 else max(0, sharded - activations),
        optimizer=2 * sharded,
        gathered=_gathered_bytes(run),
        activations=activations,
        reserve=round(RESERVE_GB[run.shape.gpu] * GB),
    )


def activation_bytes(run: Run) -> int:
    """Return what one micro-batch keeps for the backward pass, and one chunk of logits.

    A block keeps 6 x dim (stream twice, both norms, query, attention's output), twice the kv heads, and 4 x ffn dim
    (gate, up, silu, product) per token; with recompute only its input, and one block whole.
    """
    model, train = run.train.model, run.train
    tokens = train.micro_batch_sequences * train.sequence_tokens
    width = COMPUTE_BYTES[train.precision]
    block = width * tokens * (6 * model.dim + 2 * model.num_kv_heads * model.head_dim + 4 * model.ffn_dim)
    kept = model.num_layers * width * tokens * model.dim + block if train.recompute else model.num_layers * block
    logits = min(_LOSS_CHUNK_BYTES, 3 * FP32_BYTES * tokens * model.vocab_size)
    head_gradient = FP32_BYTES * model.vocab_size * model.dim
    return kept + logits + head_gradient


def keeps_whole(run: Run) -> bool:
    """Whether a model is small enough to be kept whole on each rank for a time.

    Then weights are gathered once per micro-batch, not again for the backward pass, and gradients of micro-batches are
    added up whole and reduced once a step. Done where 4 bytes per parameter are less than a tenth of the device.
    """
    return FP32_BYTES * num_parameters(run.train.model) < MEMORY_GB[run.shape.gpu] * GB / 10


def communication_floor_seconds(run: Run) -> float:
    """Return the least seconds that a step's collectives take on the slower of NVLink and the nodes' rails.

    Per micro-batch weights are gathered twice (once if kept whole) in compute precision; gradients are reduced in
    float32. Ring or tree, a rank must receive what it does not hold, and so must a node.
    """
    train, shape = run.train, run.shape
    rounds = _rounds(run)
    gathers = (1 if keeps_whole(run) else 2) * num_parameters(train.model) * COMPUTE_BYTES[train.precision] * rounds
    reductions = num_parameters(train.model) * FP32_BYTES * (1 if keeps_whole(run) else rounds)
    return _link_seconds(gathers + reductions, shape)


def _link_seconds(size_bytes: float, shape: Shape) -> float:
    if shape.device == "cpu":
        return 0.0
    inside = size_bytes * (shape.ranks_per_node - 1) / shape.ranks_per_node / (shape.nvlink_gb_per_s * GB)
    between = size_bytes * (shape.nodes - 1) / shape.nodes / (shape.rails * shape.rail_gbit_per_s / 8 * GB)
    return max(inside, between)


def _gathered_bytes(run: Run) -> int:
    """Gathered weights (all, or two blocks and the embeddings), one block's gradients, their float32 copy, sums."""
    model, width = run.train.model, COMPUTE_BYTES[run.train.precision]
    block = block_parameters(model)
    whole = keeps_whole(run)
    weights = num_parameters(model) if whole else 2 * block + embedding_parameters(model)
    sums = FP32_BYTES * num_parameters(model) if whole and _rounds(run) > 1 else 0
    return width * weights + (width + FP32_BYTES) * block + sums


def _rounds(run: Run) -> int:
    return run.train.global_batch_sequences // (run.shape.world_size * run.train.micro_batch_sequences)
