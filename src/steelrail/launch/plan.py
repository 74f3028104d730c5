"""The plan of a run before anything is spent: memory, time, dollars, what is cached. Pure."""

from __future__ import annotations

from decimal import Decimal

from steelrail.config.schema import Run
from steelrail.launch.inputs import Inputs
from steelrail.launch.spend import usd_per_second
from steelrail.train.plan import Memory, Plan, peak_flops, plan
from steelrail.units import SECONDS_PER_HOUR, micro_usd, show_bytes, show_seconds, show_usd


def show_plan(run: Run, inputs: Inputs | None, usd_per_gpu_hour: Decimal | None) -> str:
    """Return the plan as text. ``inputs`` is none before the data shards are made."""
    estimate = plan(run)
    lines = [
        f"run {run.name}, key {inputs.key if inputs else '(known once the data shards are made)'}",
        _shape_line(run),
        _model_line(run, estimate),
        _memory_line(estimate),
        _time_line(run, estimate),
        _money_line(run, estimate, usd_per_gpu_hour),
    ]
    return "\n".join(lines + ([_data_line(run, inputs)] if inputs else []))


def _shape_line(run: Run) -> str:
    shape = run.shape
    if run.slurm.executor == "local":
        return f"{shape.world_size} ranks on {shape.device}, all on this host, without Slurm"
    gpus = f"{shape.num_gpus} GPUs ({shape.nodes} x {shape.gpus_per_node})"
    spare = f" and {run.slurm.spare_nodes} spare" if run.slurm.spare_nodes else ""
    ranks = f"{shape.world_size} ranks on {shape.device}"
    return f"{gpus}{spare}, {ranks}, rack {shape.rack}, partition {run.slurm.partition}"


def _model_line(run: Run, estimate: Plan) -> str:
    train = run.train
    batch = f"{train.global_batch_sequences} x {train.sequence_tokens} = {estimate.tokens_per_step:,} tokens a step"
    return f"{estimate.num_parameters / 1e6:,.1f} M parameters, {train.precision}, {train.steps:,} steps of {batch}"


def _memory_line(estimate: Plan) -> str:
    parts = estimate.memory
    names = [name for name in Memory.__dataclass_fields__ if getattr(parts, name)]
    said = ", ".join(f"{name} {show_bytes(getattr(parts, name))}" for name in names)
    verdict = "fits" if estimate.fits else "DOES NOT FIT"
    total = f"{show_bytes(parts.total)} of {show_bytes(estimate.memory_available)}"
    return f"memory a rank: {total}, {verdict} ({said})"


def _time_line(run: Run, estimate: Plan) -> str:
    peak = f"{run.shape.world_size} x {peak_flops(run) / 1e12:g} TFLOP/s of dense {run.train.precision}"
    flops = f"{estimate.flops_per_token / 1e9:.3g} GFLOP a token"
    basis = f"at an assumed MFU of {estimate.assumed_mfu:.0%} ({flops}, {peak})"
    if run.shape.device == "cpu":
        basis = f"on CPUs at a guess, which may be far off ({flops}, {peak})"
    floor = f"communication floor {estimate.communication_seconds:.3f} s"
    step = f"{estimate.step_seconds:.3f} s a step ({floor})"
    total = show_seconds(estimate.hours * SECONDS_PER_HOUR)
    return f"time: about {total} {basis}, {step}{_segments(run, estimate)}"


def _segments(run: Run, estimate: Plan) -> str:
    if run.slurm.executor == "local":
        return ""
    segments = estimate.hours * 60 / run.slurm.minutes
    return f", {max(1, -(-int(segments * 100) // 100))} segment(s) of Slurm"


def _money_line(run: Run, estimate: Plan, usd_per_gpu_hour: Decimal | None) -> str:
    rate = usd_per_second(run, None if usd_per_gpu_hour is None else str(usd_per_gpu_hour))
    if rate is None:
        return "cost: no price known"
    hourly = f"{show_usd(micro_usd(rate * SECONDS_PER_HOUR))} an hour ({run.cost.provider} {run.cost.sku})"
    if run.slurm.executor == "local":
        return _local_money(run, hourly)
    total = micro_usd(rate * SECONDS_PER_HOUR * Decimal(str(estimate.hours)))
    budget = f", budget ${run.cost.budget_usd}" if run.cost.budget_usd else ""
    return f"cost: about {show_usd(total)} at {hourly}{budget}"


def _local_money(run: Run, hourly: str) -> str:
    """Nobody charges a local run; its budget, if it has one, is an hourglass that runs at the shape's price."""
    budget = f"; the budget of ${run.cost.budget_usd} runs down as if it were {hourly}" if run.cost.budget_usd else ""
    return f"cost: unavailable, no Slurm accounts for a local run{budget}"


def _data_line(run: Run, inputs: Inputs) -> str:
    manifest = inputs.manifest
    seen = run.train.steps * run.train.global_batch_sequences * run.train.sequence_tokens
    epochs = seen / max(1, manifest.train_tokens)
    return f"data: {manifest.train_tokens:,} tokens in {len(manifest.data_shards)} data shards, {epochs:.2f} epochs"
