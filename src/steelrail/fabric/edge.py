"""The fabric stage on the head: from what rank 0 wrote to the report, or to an error that names the culprits."""

from __future__ import annotations

from pathlib import Path

from steelrail import log
from steelrail.artifacts.fabric import FabricReport
from steelrail.artifacts.files import read_artifact, write_artifact, write_whole
from steelrail.clients import clock
from steelrail.clients.provenance import provenance
from steelrail.config.keys import digest
from steelrail.config.schema import Run
from steelrail.errors import FabricError, InputError, must
from steelrail.fabric.facts import Facts, RankError
from steelrail.fabric.folder import JobFolder, fabric_folder
from steelrail.fabric.heatmap import draw_heatmap
from steelrail.fabric.judge import judge
from steelrail.fabric.receipt import hardware_digest, is_valid

REPORT = "report.json"
UNFIT_REPORT = "report-unfit.json"
HEATMAP = "heatmap.svg"
_SHOWN = 8
_log = log.logger(__name__)


def finish(run: Run, job_folder: Path, job_id: str) -> FabricReport:
    """Judge what a fabric job found and write heat map and report under ``results/<run>/fabric``, the report last.

    Raises ``FabricError`` when the ranks left no facts (naming what they said) or when the nodes are unfit: the report
    is then ``report-unfit.json``, and the message names culprits and nodes to leave out.
    """
    facts = _read_facts(run, JobFolder(job_folder))
    report = make_report(facts, run, job_id)
    folder = fabric_folder(run.results, run.name)
    write_whole(folder / HEATMAP, draw_heatmap(report))
    for finding in report.findings:
        _log.warning("%s: %s: %s", finding.severity, finding.culprit, finding.what)
    if not report.fit:
        write_artifact(folder / UNFIT_REPORT, report)
        raise FabricError(unfit_message(report, folder / UNFIT_REPORT))
    write_artifact(folder / REPORT, report)
    (folder / UNFIT_REPORT).unlink(missing_ok=True)
    return report


def make_report(facts: Facts, run: Run, job_id: str) -> FabricReport:
    """Return the report of a job's facts, judged now under the run's thresholds."""
    verdict = judge(facts, run)
    leaves = {node.leaf for node in facts.nodes if node.leaf}
    inputs = {"facts": digest(facts.model_dump(mode="json"))}
    return FabricReport(
        run=facts.run,
        key=facts.key,
        job_id=job_id,
        backend=facts.backend,
        nodes=facts.nodes,
        num_leaves=len(leaves),
        pairs=facts.pairs,
        world=facts.world,
        findings=verdict.findings,
        fit=verdict.fit,
        exclude=verdict.exclude,
        hardware_digest=hardware_digest(facts.nodes),
        measured=facts.measured,
        valid_until=facts.measured + run.fabric.valid_hours * 3600,
        provenance=provenance("fabric", facts.key, run, inputs, facts.started),
    )


def valid_report(run: Run) -> FabricReport | None:
    """Return the report on disk if it still admits this run, else none."""
    try:
        report = read_artifact(fabric_folder(run.results, run.name) / REPORT, FabricReport)
    except InputError:
        return None
    return report if is_valid(report, clock.now(), run) else None


def unfit_message(report: FabricReport, where: Path) -> str:
    """Return what a user reads when the nodes are unfit: culprits with evidence, and what to do."""
    unfit = [finding for finding in report.findings if finding.severity == "unfit"]
    said = "; ".join(f"{finding.culprit} ({finding.what})" for finding in unfit[:_SHOWN])
    more = f" and {len(unfit) - _SHOWN} more" if len(unfit) > _SHOWN else ""
    names = ", ".join(report.exclude)
    do = f"leave out {names} (slurm.exclude: [{names}])" if names else "mend this"
    return must("the fabric", "fit to train on", f"unfit: {said}{more}", where, f"{do} and run fabric again")


def _read_facts(run: Run, folder: JobFolder) -> Facts:
    if not folder.report.exists():
        raise FabricError(_lost_message(folder))
    facts = read_artifact(folder.report, Facts)
    if facts.run != run.name:
        raise FabricError(
            must("the fabric job's run", run.name, facts.run, folder.report, "give the folder of this run's job")
        )
    return facts


def _lost_message(folder: JobFolder) -> str:
    faults = [read_artifact(path, RankError) for path in sorted(folder.root.glob("error-rank-*.json"))]
    # Of many ranks most only say that the others went away: an error with a message of ours comes first.
    faults.sort(key=lambda fault: (fault.kind not in ("FabricError", "NodeError", "ClusterError"), fault.rank))
    said = [f"rank {fault.rank} on {fault.host} ({fault.doing}): {fault.kind}: {fault.message}" for fault in faults]
    text = "missing: " + ("; ".join(said[:3]) if said else "no rank said why")
    return must("the fabric job's report", "there", text, folder.root, "look at the job's log and run fabric again")
