"""The fabric stage on the head: from what rank 0 wrote to the report, or to an error that names the culprits."""

from __future__ import annotations

from pathlib import Path

from steelrail import log
from steelrail.artifacts.fabric import FabricReport, Finding
from steelrail.artifacts.files import read_artifact, write_artifact, write_whole
from steelrail.clients.provenance import provenance
from steelrail.config.keys import digest
from steelrail.config.schema import Run
from steelrail.errors import FabricError, must
from steelrail.fabric.aftermath import say_of_try
from steelrail.fabric.facts import Facts
from steelrail.fabric.folder import JobFolder, fabric_folder
from steelrail.fabric.heatmap import draw_heatmap
from steelrail.fabric.judge import judge
from steelrail.fabric.receipt import hardware_digest

REPORT = "report.json"
UNFIT_REPORT = "report-unfit.json"
HEATMAP = "heatmap.svg"
_SHOWN = 8
_log = log.logger(__name__)


def judge_job(run: Run, job_folder: Path, job_id: str) -> FabricReport:
    """Return the report on what a fabric job found, with the verdict, and draw its heat map.

    Raises ``FabricError`` when the ranks left no facts, naming what they said and where they were.
    """
    job = JobFolder(job_folder)
    facts = _read_facts(run, job)
    before = read_artifact(job.before, FabricReport) if job.before.exists() else None
    report = make_report(facts, run, job_id, before)
    write_whole(fabric_folder(run) / HEATMAP, draw_heatmap(report))
    for finding in report.findings:
        _log.warning("%s: %s: %s", finding.severity, finding.culprit, finding.what)
    return report


def admit(run: Run, report: FabricReport) -> FabricReport:
    """Write the report of fit nodes as ``results/<run>/fabric/report.json``: from then on training may start.

    Raises ``FabricError`` when the nodes are unfit: the report is then ``report-unfit.json``, and the message names
    culprits and nodes to leave out.
    """
    folder = fabric_folder(run)
    if not report.fit:
        write_artifact(folder / UNFIT_REPORT, report)
        raise FabricError(unfit_message(report, folder / UNFIT_REPORT))
    write_artifact(folder / REPORT, report)
    (folder / UNFIT_REPORT).unlink(missing_ok=True)
    return report


def make_report(facts: Facts, run: Run, job_id: str, before: FabricReport | None = None) -> FabricReport:
    """Return the report of a job's facts, judged now under the run's thresholds.

    ``before`` is the report of the job whose unfit hosts this one was to do without: they stay excluded.
    """
    verdict = judge(facts, run)
    leaves = {node.leaf for node in facts.nodes if node.leaf}
    inputs = {"facts": digest(facts.model_dump(mode="json"))}
    unfit = before.exclude if before else ()
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
        exclude=tuple(dict.fromkeys((*unfit, *verdict.exclude))),
        hardware_digest=hardware_digest(facts.nodes),
        measured=facts.measured,
        valid_until=facts.measured + run.fabric.valid_hours * 3600,
        provenance=provenance("fabric", facts.key, run, inputs, facts.started),
        replaces=before.job_id if before else "",
        left_out=unfit_findings(before) if before else (),
    )


def unfit_findings(report: FabricReport) -> tuple[Finding, ...]:
    """Return what makes a report's nodes unfit."""
    return tuple(finding for finding in report.findings if finding.severity == "unfit")


def unfit_message(report: FabricReport, where: Path) -> str:
    """Return what a user reads when the nodes are unfit: culprits with evidence, and what to do."""
    names = ", ".join(report.exclude)
    do = f"leave out {names} (slurm.exclude: [{names}])" if names else "mend this"
    return must("the fabric", "fit to train on", f"unfit: {show_unfit(report)}", where, f"{do} and run fabric again")


def show_unfit(report: FabricReport) -> str:
    """Return the culprits of an unfit report, each with the evidence: ``node3 (most of its links are slow: ...)``."""
    unfit = unfit_findings(report)
    said = "; ".join(f"{finding.culprit} ({finding.what})" for finding in unfit[:_SHOWN])
    return f"{said} and {len(unfit) - _SHOWN} more" if len(unfit) > _SHOWN else said


def _read_facts(run: Run, job: JobFolder) -> Facts:
    tries = job.tries()
    report = next((one.report for one in reversed(tries) if one.report.exists()), None)
    if report is None:
        said = say_of_try(tries[-1], run.shape) if tries else "no rank was started"
        where = tries[-1].root if tries else job.root
        do = "look at ranks.log and the stacks there, and run fabric again"
        raise FabricError(must("the fabric job's report", "there", f"missing: {said}", where, do))
    facts = read_artifact(report, Facts)
    if facts.run != run.name:
        raise FabricError(
            must("the fabric job's run", run.name, facts.run, report, "give the folder of this run's job")
        )
    return facts
