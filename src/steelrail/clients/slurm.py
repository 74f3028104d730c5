"""The one door to Slurm's commands: argument lists, time-outs, and patience while a controller restarts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from steelrail.clients import clock, process
from steelrail.clients.process import Completed
from steelrail.errors import ClusterError, must
from steelrail.formats import sacct, scontrol, sinfo, squeue
from steelrail.formats.hostlist import compress
from steelrail.formats.sacct import SacctRow
from steelrail.formats.scontrol import JobView, NodeView
from steelrail.formats.sinfo import NodeOffer
from steelrail.formats.squeue import QueueRow
from steelrail.log import logger

_log = logger(__name__)

# What Slurm says while a daemon restarts or is overrun; the same call may work a moment later.
_TRANSIENT = re.compile(
    "Unable to contact slurm controller|Connection refused|Connection timed out|Socket timed out|timed out after|"
    "Zero Bytes were transmitted|Communication connection failure|Unexpected message received|"
    "temporarily unable to accept|Resource temporarily unavailable|Connection reset by peer|"
    "Unable to connect to database|Problem talking to the database|slurm_persist_conn_open|"
    "Transport endpoint is not connected",
    re.IGNORECASE,
)
_NO_JOB = re.compile("Invalid job id|Job/step already completing or completed", re.IGNORECASE)
# Settings of the caller's shell that change what these commands print or do.
_FOREIGN = ("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SALLOC_", "SQUEUE_", "SINFO_", "SACCT_", "SCONTROL_", "SUBMITIT_")
_JOB_ID = re.compile(r"^\d+$")


class SlurmAway(ClusterError):
    """Slurm's daemons did not answer for long: nothing is known about any job."""


@dataclass(frozen=True)
class Slurm:
    """Slurm's commands. ``retry_seconds`` bounds how long an unanswered call is repeated."""

    runner: Callable[[Sequence[str], float, Mapping[str, str] | None], Completed] = process.run
    timeout_seconds: float = 30.0
    retry_seconds: float = 60.0

    def job(self, job_id: str) -> JobView | None:
        """Return a job as the controller sees it; none when the controller has forgotten it. Raises ``SlurmAway``."""
        done = self._call(["scontrol", "show", "job", _checked(job_id)], allow=_NO_JOB)
        return scontrol.parse_job(done.stdout) if done.ok else None

    def queue(self, user: str, name: str) -> tuple[QueueRow, ...]:
        """Return the jobs of ``user`` called ``name`` that wait, run or end."""
        where = ["--user", user, "--name", name]
        done = self._call(["squeue", "--noheader", "--states=all", f"--format={squeue.JOB_FORMAT}", *where])
        return tuple(row for row in squeue.parse_jobs(done.stdout) if row.state not in scontrol.FINAL_STATES)

    def steps(self, job_id: str) -> dict[str, str]:
        """Return the running job steps of a job: name to id (``15.0``)."""
        argv = ["squeue", "--steps", "--noheader", f"--format={squeue.STEP_FORMAT}", f"--jobs={_checked(job_id)}"]
        return squeue.parse_steps(self._call(argv, allow=_NO_JOB).stdout)

    def partition(self, name: str) -> tuple[NodeOffer, ...]:
        """Return the nodes of a partition and what they offer; none for a partition that does not exist."""
        argv = ["sinfo", "--Node", "--noheader", f"--format={sinfo.NODE_FORMAT}", f"--partition={name}"]
        return sinfo.parse_nodes(self._call(argv).stdout)

    def partitions(self) -> tuple[str, ...]:
        """Return the names of all partitions."""
        done = self._call(["sinfo", "--noheader", f"--format={sinfo.PARTITION_FORMAT}"])
        return tuple(dict.fromkeys(done.stdout.split()))

    def nodes(self, names: Sequence[str]) -> tuple[NodeView, ...]:
        """Return the state of nodes by name."""
        if not names:
            return ()
        return scontrol.parse_nodes(self._call(["scontrol", "show", "node", compress(names)]).stdout)

    def config(self) -> Mapping[str, str]:
        """Return the controller's settings, such as ``KillWait``."""
        return scontrol.parse_config(self._call(["scontrol", "show", "config"]).stdout)

    def has_accounting(self) -> bool:
        """Return whether this cluster keeps accounts and ``sacct`` can read them."""
        kept = self.config().get("AccountingStorageType", "") not in ("", "(null)", "accounting_storage/none")
        return kept and self._answers(["sacct", "--noheader", "--allocations", "--starttime=now"])

    def accounts(self, job_ids: Sequence[str]) -> tuple[SacctRow, ...]:
        """Return the rows of ``sacct --duplicates`` of jobs: one a segment, one a step, 2 to 5 s late."""
        if not job_ids:
            return ()
        jobs = ",".join(_checked(job_id) for job_id in job_ids)
        argv = [
            "sacct",
            "--duplicates",
            "--parsable2",
            "--noheader",
            f"--jobs={jobs}",
            f"--format={sacct.SACCT_FORMAT}",
        ]
        return sacct.parse(self._call(argv).stdout)

    def requeue(self, job_id: str) -> None:
        """End a running job and put it back into the queue under its id."""
        self._call(["scontrol", "requeue", _checked(job_id)])

    def update(self, job_id: str, **changes: str) -> bool:
        """Change a job (``ExcNodeList=node3``); returns whether Slurm took it, which depends on the job's state."""
        pairs = [f"{name}={value}" for name, value in changes.items()]
        done = self._call(["scontrol", "update", f"JobId={_checked(job_id)}", *pairs], allow=re.compile("."))
        if not done.ok:
            _log.info("Slurm did not take %s for job %s: %s", " ".join(pairs), job_id, _one_line(done))
        return done.ok

    def cancel(self, job_id: str) -> None:
        """Cancel a job for good; one that is gone already is no error."""
        self._call(["scancel", _checked(job_id)], allow=_NO_JOB)

    def signal(self, step_id: str, name: str) -> None:
        """Send a signal to the tasks of a job (``15``, not its batch script) or of one job step (``15.0``)."""
        job_id, _, step = step_id.partition(".")
        target = _checked(job_id) + (f".{_checked(step)}" if step else "")
        self._call(["scancel", f"--signal={name}", target], allow=_NO_JOB)

    def _call(self, argv: Sequence[str], allow: re.Pattern[str] | None = None) -> Completed:
        """Run a command; repeat it while Slurm is away. Failures that match ``allow`` are the caller's to read."""
        give_up = clock.monotonic() + self.retry_seconds
        while True:
            done = self._once(argv)
            transient = not done.ok and _TRANSIENT.search(done.stderr)
            if not transient:
                return _judge(done, allow)
            if clock.monotonic() >= give_up:
                raise SlurmAway(
                    must(
                        "Slurm", "answering", f"not ({_one_line(done)})", argv[0], "see that slurmctld and slurmdbd run"
                    )
                )
            _log.info("%s got no answer from Slurm, trying again: %s", argv[0], _one_line(done))
            clock.sleep(2.0)

    def _answers(self, argv: Sequence[str]) -> bool:
        try:
            return self._once(argv).ok
        except ClusterError:
            return False

    def _once(self, argv: Sequence[str]) -> Completed:
        try:
            return self.runner(argv, self.timeout_seconds, _environment())
        except (FileNotFoundError, PermissionError) as error:  # a folder on PATH that may not be searched hides it too
            do = "log in to a node of the cluster, or set slurm.executor: local"
            raise ClusterError(must("Slurm", "installed here", "missing", argv[0], do)) from error


def user_name() -> str:
    """Return the name of the user whose jobs these are."""
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


@contextmanager
def clean_environment() -> Iterator[None]:
    """Hide the variables of an enclosing Slurm job while a new job is submitted; which cluster it goes to stays."""
    hidden = {name: value for name, value in os.environ.items() if name.startswith(_FOREIGN) and name != "SLURM_CONF"}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)


def without_slurm(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what Slurm put into it, but with ``SLURM_CONF``.

    Within a batch job ``srun`` takes ``SLURM_JOB_NODELIST`` and its kin for wishes, and waits for nodes that are lost.
    """
    return {name: value for name, value in env.items() if not name.startswith(_FOREIGN) or name == "SLURM_CONF"}


def _environment() -> dict[str, str]:
    return {**without_slurm(os.environ), "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}


def _judge(done: Completed, allow: re.Pattern[str] | None) -> Completed:
    if done.ok or (allow is not None and allow.search(done.stderr)):
        return done
    raise ClusterError(
        must(
            done.argv[0], "accepted by Slurm", f"refused ({_one_line(done)})", " ".join(done.argv), "mend what it names"
        )
    )


def _checked(job_id: str) -> str:
    if not _JOB_ID.match(job_id):
        raise ClusterError(must("job id", "a number", repr(job_id), "Slurm job", "give the id that squeue shows"))
    return job_id


def _one_line(done: Completed) -> str:
    return " ".join((done.stderr or done.stdout or f"exit code {done.exit_code}").split())[:300]
