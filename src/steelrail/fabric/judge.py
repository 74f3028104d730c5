"""The verdict: what is wrong with these nodes, whose fault it is, and which nodes to leave out. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from steelrail.artifacts.fabric import DeviceFact, Finding, Measurement, NodeFact
from steelrail.config.schema import Run
from steelrail.fabric.facts import Facts
from steelrail.fabric.pairs import judge_pairs, link_ratio
from steelrail.units import show_bytes

EVERYONE = "all nodes"
# Above this p99/p50 jitter is worth a word; above fabric.max_jitter it is refused (on GPUs).
JITTER_WORTH_A_WORD = 3.0
# On the CPU ranks share cores: a core counts as slow below this share of slow_ratio, and then only with a warning.
_CPU_PATIENCE = 0.25
_MUST_MATCH = ("torch", "cuda", "nccl")


@dataclass(frozen=True)
class Verdict:
    """What was found. ``exclude`` holds hosts, each on evidence."""

    findings: tuple[Finding, ...]
    fit: bool
    exclude: tuple[str, ...]


def judge(facts: Facts, run: Run) -> Verdict:
    """Return the verdict on what a fabric job found, under the thresholds of the run file."""
    pairs = judge_pairs(facts.pairs, link_ratio(run.fabric.slow_ratio, facts.device))
    findings = (
        *judge_devices(facts.nodes, run.fabric.slow_ratio, facts.device),
        *pairs.findings,
        *judge_versions(facts.nodes),
        *judge_rack(facts.nodes, run.shape.rack),
        *judge_jitter(facts.world, run.fabric.max_jitter, facts.device),
        *judge_speed(facts, run),
    )
    unfit = [finding for finding in findings if finding.severity == "unfit"]
    hosts = [node.host for node in facts.nodes]
    blamed = {host for finding in unfit for host in culprit_hosts(finding.culprit, hosts)} | set(pairs.exclude)
    return Verdict(findings, not unfit, tuple(host for host in hosts if host in blamed))


def culprit_hosts(culprit: str, hosts: Iterable[str]) -> tuple[str, ...]:
    """Return the host that a finding blames: a host, or the host of ``host/gpu3``. A link blames neither end."""
    return tuple(host for host in hosts if culprit == host or culprit.startswith(f"{host}/"))


def judge_devices(nodes: Iterable[NodeFact], slow_ratio: float, device: str) -> tuple[Finding, ...]:
    """Return findings on devices: wrong bits, slowness, a model or memory unlike the others'."""
    devices = {f"{node.host}/gpu{one.index}": one for node in nodes for one in node.devices}
    models = {name: f"{one.name}, {one.memory_bytes} bytes" for name, one in devices.items()}
    kinds = _odd_ones(models, "device model", "unfit" if device == "cuda" else "warning")
    bits = [finding for group in _by_model(devices) for finding in _wrong_bits(group)]
    slow = [finding for group in _by_model(devices) for finding in _slow_devices(group, slow_ratio, device)]
    return (*kinds, *bits, *slow)


def judge_versions(nodes: Iterable[NodeFact]) -> tuple[Finding, ...]:
    """Return findings on software that differs between nodes: unfit for torch, CUDA and NCCL, else a warning."""
    by_host = {node.host: node.versions for node in nodes}
    names = sorted({name for versions in by_host.values() for name in versions})
    findings: list[Finding] = []
    for name in names:
        values = {host: versions.get(name, "none") for host, versions in by_host.items()}
        findings += _odd_ones(values, name, "unfit" if name in _MUST_MATCH else "warning")
    return tuple(findings)


def judge_rack(nodes: tuple[NodeFact, ...], rack: str) -> tuple[Finding, ...]:
    """Return a finding when one leaf switch is asked for and not proved: unfit if required, a warning if preferred."""
    leaves = Counter(node.leaf for node in nodes)
    if rack == "any" or len(nodes) < 2 or (len(leaves) == 1 and None not in leaves):
        return ()
    text = ", ".join(f"{host.host} on {host.leaf or 'an unknown leaf'}" for host in nodes)
    severity = "unfit" if rack == "required" else "warning"
    what = f"nodes must share one leaf switch (shape.rack: {rack}): {text}"
    return (Finding(severity=severity, culprit=EVERYONE, what=what),)


def judge_jitter(world: Iterable[Measurement], max_jitter: float, device: str) -> tuple[Finding, ...]:
    """Return findings on unsteady all-gathers: unfit above ``max_jitter`` on GPUs, a warning where cores are shared."""
    findings = []
    for one in world:
        jitter = one.seconds_p99 / max(one.seconds_p50, 1e-12)
        # A small message's tail is the host's, not the link's: only the model's gathers are a gate.
        if one.collective == "all_gather" and jitter > (JITTER_WORTH_A_WORD if device == "cuda" else max_jitter):
            severity = "unfit" if jitter > max_jitter and device == "cuda" else "warning"
            findings.append(Finding(severity=severity, culprit=EVERYONE, what=_jitter_text(one, jitter)))
    return tuple(findings)


def judge_speed(facts: Facts, run: Run) -> tuple[Finding, ...]:
    """Return a warning when all links alike are far below what the shape promises (say, NCCL on TCP for InfiniBand)."""
    if facts.device != "cuda" or not facts.pairs:
        return ()
    inside = all("/" in pair.first for pair in facts.pairs)
    promised = run.shape.nvlink_gb_per_s if inside else run.shape.rail_gbit_per_s / 8
    rates = sorted(pair.gb_per_s for pair in facts.pairs if ("/" in pair.first) == inside)
    found = rates[len(rates) // 2]
    if found >= run.fabric.slow_ratio * promised:
        return ()
    what = (
        f"links carry {found:.2f} GB/s in the middle, {promised:.1f} promised by shape (transport: {_transport(facts)})"
    )
    return (Finding(severity="warning", culprit=EVERYONE, what=what),)


def _transport(facts: Facts) -> str:
    return facts.world[0].library if facts.world else facts.backend


def _jitter_text(one: Measurement, jitter: float) -> str:
    size = f"{one.collective} of {one.size_bytes} bytes ({one.dtype}, {len(one.ranks)} ranks, {one.algorithm})"
    return f"{size}: p99/p50 is {jitter:.1f} ({one.seconds_p50 * 1e3:.2f} ms p50, {one.repeats} repeats)"


def _model(one: DeviceFact, device: str) -> str:
    return f"{one.name} of {show_bytes(one.memory_bytes)}" if device == "cuda" else one.name


def _by_model(devices: Mapping[str, DeviceFact]) -> list[dict[str, DeviceFact]]:
    groups: dict[str, dict[str, DeviceFact]] = {}
    for name, one in devices.items():
        groups.setdefault(one.name, {})[name] = one
    return list(groups.values())


def _wrong_bits(group: Mapping[str, DeviceFact]) -> list[Finding]:
    what = "matrix product"
    return _odd_ones({name: one.matrix_digest for name, one in group.items()}, what, "unfit")


def _slow_devices(group: Mapping[str, DeviceFact], slow_ratio: float, device: str) -> list[Finding]:
    seconds = sorted(one.matrix_seconds_p50 for one in group.values())
    middle = seconds[(len(seconds) - 1) // 2]
    ratio = slow_ratio if device == "cuda" else slow_ratio * _CPU_PATIENCE
    slow = {name: one for name, one in group.items() if middle < ratio * one.matrix_seconds_p50}
    severity = "unfit" if device == "cuda" else "warning"
    return [
        Finding(severity=severity, culprit=name, what=_slow_text(one.matrix_seconds_p50, middle))
        for name, one in slow.items()
    ]


def _slow_text(seconds: float, middle: float) -> str:
    return f"matrix product takes {seconds * 1e3:.2f} ms, {middle * 1e3:.2f} on others of its model"


def _odd_ones(values: Mapping[str, str], what: str, severity: str) -> list[Finding]:
    """Return a finding for each name whose value differs from what most have; blame all when there is no majority."""
    if len(set(values.values())) < 2:
        return []
    usual, count = Counter(values.values()).most_common(1)[0]
    if count * 2 <= len(values):
        text = f"{what} differs and no value has a majority: " + ", ".join(
            f"{name} {value}" for name, value in values.items()
        )
        return [_finding(severity, EVERYONE, text)]
    odd = {name: value for name, value in values.items() if value != usual}
    return [_finding(severity, name, f"{what} is {value}, {usual} on most") for name, value in odd.items()]


def _finding(severity: str, culprit: str, what: str) -> Finding:
    return Finding.model_validate({"severity": severity, "culprit": culprit, "what": what})
