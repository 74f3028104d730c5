"""What is asked of Slurm, built from the run alone. Pure; shown to the user before anything is submitted."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from steelrail.config.schema import Run
from steelrail.launch.container import describe

Stage = Literal["train", "fabric"]
Option = str | int | bool

# Where credentials are, which is no secret: a job must find the ones with which its run was checked.
CREDENTIAL_FILES = ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE")
CREDENTIAL_PLACES = (*CREDENTIAL_FILES, "AWS_PROFILE")
# All that a job inherits from the shell that submits it. Secrets (AWS_SECRET_ACCESS_KEY) are never among them.
EXPORTED = ("HOME", "USER", "LOGNAME", "PATH", "LANG", "SLURM_CONF", *CREDENTIAL_PLACES)
# What a user's own executor may choose in place of the run file; all else of ours is required and wins.
CHOICES = ("partition", "account", "qos", "reservation", "constraint", "time", "mail_user", "mail_type")
# Parameters of a user's executor that would contradict the shape, or ask for fixed nodes.
# fmt: off
_CONTRADICT = frozenset(
    (
        "additional_parameters", "array", "array_parallelism", "comment", "cpus_per_gpu", "cpus_per_task",
        "exclude", "exclusive", "export", "gpus", "gpus_per_node", "gpus_per_task", "gres", "job_name", "map_count",
        "mem", "mem_per_cpu", "mem_per_gpu", "no_requeue", "nodelist", "nodes", "ntasks", "ntasks_per_node",
        "num_gpus", "open_mode", "requeue", "setup", "signal", "signal_delay_s", "srun_args", "stderr_to_stdout",
        "switches", "tasks_per_node", "use_srun", "wckey",
    )
)
# fmt: on


@dataclass(frozen=True)
class Request:
    """One job as it is asked for. ``options`` are sbatch's; ``environment`` is what its ranks get besides, and
    ``container`` the image they run in (empty: none)."""

    options: tuple[tuple[str, Option], ...]
    setup: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    container: str = ""

    def option(self, name: str) -> Option | None:
        """Return the value of an option, or none when it is not asked for."""
        return dict(self.options).get(name)


def train_request(run: Run, key: str, folder: Path, exclude: Collection[str], present: Collection[str]) -> Request:
    """Return the request of the training job.

    ``folder`` is the run folder (its digest tells jobs of equal names apart), ``exclude`` holds unfit nodes,
    ``present`` the names that the submitting shell's environment has.
    """
    saving: dict[str, Option] = {"requeue": True, "signal": f"USR2@{run.slurm.lead_seconds}", "time": run.slurm.minutes}
    if run.slurm.spare_nodes:
        # The job goes on without a node that fails.
        saving |= {"nodes": run.held_nodes, "no_kill": True}
    return _request(run, "train", key, folder, exclude, present, saving)


def fabric_request(run: Run, key: str, folder: Path, present: Collection[str]) -> Request:
    """Return the request of the fabric job: the same nodes, for a short while, once."""
    # Without a signal of ours submitit asks for its own, which ends the ranks 90 s early. Ours asks for their stacks.
    once: dict[str, Option] = {"no_requeue": True, "signal": "QUIT@30", "time": run.slurm.fabric_minutes}
    return _request(run, "fabric", key, folder, (), present, once)


def job_name(run_name: str, stage: Stage) -> str:
    """Return the name of a job: what ``squeue`` shows, and what we look for before we submit another."""
    return f"steelrail-{run_name}-{stage}"


def job_comment(run_name: str, stage: Stage, key: str, folder: Path) -> str:
    """Return the comment of a job, read back by ``formats.squeue.parse_identity``."""
    return f"steelrail run={run_name} stage={stage} key={key} folder={folder_digest(folder)}"


def folder_digest(folder: Path) -> str:
    """Return eight hex digits that stand for the absolute path of a run folder."""
    return hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:8]


def with_setup(request: Request, lines: Collection[str]) -> Request:
    """Return the request with more shell lines at the end of its set-up."""
    return replace(request, setup=(*request.setup, *lines))


def with_choices(request: Request, chosen: Mapping[str, Any]) -> Request:
    """Return the request with what a user's executor chose of ``CHOICES`` in place of the run file's."""
    mine = {name: value for name, value in chosen.items() if name in CHOICES and value is not None}
    return replace(request, options=tuple(sorted({**dict(request.options), **mine}.items())))


def extra_parameters(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what else a user's executor asks for and we have no opinion on (``dependency``, ``nice``)."""
    flat = {**chosen, **(chosen.get("additional_parameters") or {})}
    plain = {name.replace("-", "_"): value for name, value in flat.items() if value is not None}
    return {name: value for name, value in plain.items() if name not in _CONTRADICT and name not in CHOICES}


def submitit_parameters(request: Request, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the parameters for ``submitit.SlurmExecutor.update_parameters``.

    Ours go through ``additional_parameters``, which win over submitit's defaults (its signal, its job name) and over
    the user's. ``use_srun`` is off: the function runs once, on the batch host, and starts the ranks itself.
    """
    extra = extra or {}
    teardown = {"teardown": extra["teardown"]} if "teardown" in extra else {}
    flags = {name: value for name, value in extra.items() if name != "teardown"}
    # submitit writes this one option itself, under the name with a dash.
    ours = {name.replace("open_mode", "open-mode"): value for name, value in request.options}
    additional = {**flags, **ours}
    return {
        "use_srun": False,
        "stderr_to_stdout": True,
        "wckey": None,
        "setup": list(request.setup),
        "additional_parameters": additional,
        **teardown,
    }


def sbatch_lines(request: Request) -> list[str]:
    """Return the request as lines of a batch script, quoted for the shell that reads them."""
    return [_line(name, value) for name, value in request.options]


def show(request: Request) -> str:
    """Return the request as text for a reader: options, set-up lines, environment of the ranks."""
    return "\n".join([*sbatch_lines(request), *_around_the_ranks(request)])


def show_local(run: Run, request: Request) -> str:
    """Return for a reader what starts instead where nothing is asked of Slurm."""
    ranks = f"{run.shape.world_size} rank{'s' if run.shape.world_size != 1 else ''}"
    start = f"# not for Slurm: {ranks} on this host, without a time limit or a place in a queue"
    return "\n".join([start, *_around_the_ranks(request)])


def show_start(run: Run, request: Request) -> str:
    """Return for a reader how the job of a run starts: in Slurm, or on this host."""
    return show_local(run, request) if run.slurm.executor == "local" else show(request)


def _around_the_ranks(request: Request) -> list[str]:
    ranks = [f"{name}={shlex.quote(value)}" for name, value in request.environment]
    ranks += [f"in container {request.container}"] if request.container else []
    return [*request.setup, *(f"# ranks: {line}" for line in ranks)]


def gpu_options(run: Run) -> dict[str, Option]:
    """Return the option that asks for GPUs: ``gpus_per_node`` where the resource is called gpu, else ``gres``."""
    count = run.shape.gpus_per_node
    name, _, kind = run.slurm.gres.partition(":")
    if count == 0:
        return {}
    if name == "gpu":
        return {"gpus_per_node": f"{kind}:{count}" if kind else str(count)}
    return {"gres": f"{run.slurm.gres}:{count}"}


def _request(
    run: Run,
    stage: Stage,
    key: str,
    folder: Path,
    exclude: Collection[str],
    present: Collection[str],
    more: Mapping[str, Option],
) -> Request:
    options: dict[str, Option] = {
        "job_name": job_name(run.name, stage),
        "comment": job_comment(run.name, stage, key, folder),
        "partition": run.slurm.partition,
        "exclusive": True,
        "nodes": run.shape.nodes,
        "ntasks_per_node": run.shape.ranks_per_node,
        "cpus_per_task": run.slurm.cpus_per_rank,
        "mem": 0,
        "export": ",".join(name for name in EXPORTED if name in present),
        "open_mode": "append",
    }
    options |= gpu_options(run) | _optional(run, exclude) | _switches(run) | dict(more)
    return Request(
        tuple(sorted(options.items())),
        ("umask 077", *run.slurm.setup),
        tuple(sorted(run.slurm.environment.items())),
        describe(run),
    )


def _optional(run: Run, exclude: Collection[str]) -> dict[str, Option]:
    slurm = run.slurm
    wishes: dict[str, str | None] = {
        "account": slurm.account,
        "qos": slurm.qos,
        "reservation": slurm.reservation,
        "constraint": slurm.constraint,
        "mail_user": slurm.mail_user,
        "mail_type": ",".join(slurm.mail_type),
        "exclude": ",".join(sorted({*slurm.exclude, *exclude})),
    }
    return {name: value for name, value in wishes.items() if value}


def _switches(run: Run) -> dict[str, Option]:
    """One leaf switch for all nodes; Slurm gives up after the wait, so the allocation is verified again inside."""
    if run.shape.rack == "any" or run.shape.nodes == 1:
        return {}
    return {"switches": f"1@{run.shape.rack_wait_minutes}"}


def _line(name: str, value: Option) -> str:
    option = f"#SBATCH --{name.replace('_', '-')}"
    return option if value is True else f"{option}={shlex.quote(str(value))}"
