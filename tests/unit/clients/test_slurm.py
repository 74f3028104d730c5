import os
from pathlib import Path

import pytest

from steelrail.clients import clock
from steelrail.clients.process import Completed
from steelrail.clients.slurm import Slurm, SlurmAway, clean_environment, without_slurm
from steelrail.errors import ClusterError

DATA = Path(__file__).parents[2] / "data" / "slurm"
AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
NO_JOB = "slurm_load_jobs error: Invalid job id specified"


class Answers:
    """Stands for the commands: gives prepared answers in turn and remembers what was asked."""

    def __init__(self, *answers):
        self.answers, self.asked, self.environments = list(answers), [], []

    def __call__(self, argv, timeout, env):
        self.asked.append(list(argv))
        self.environments.append(env)
        code, out, err = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return Completed(tuple(argv), code, out, err)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(clock, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])


def test_a_restarting_controller_is_waited_for():
    answers = Answers((1, "", AWAY), (1, "", AWAY), (0, (DATA / "scontrol-job-requeued.txt").read_text(), ""))
    assert Slurm(answers).job("15").state == "PENDING"
    assert len(answers.asked) == 3


def test_a_controller_that_stays_away_makes_everything_unknown():
    with pytest.raises(SlurmAway, match="must be answering"):
        Slurm(Answers((1, "", AWAY)), retry_seconds=10).job("15")


def test_a_job_that_the_controller_has_forgotten_is_none():
    assert Slurm(Answers((1, "", NO_JOB))).job("15") is None


def test_a_folder_on_path_that_may_not_be_searched_hides_slurm_too():
    def hidden(argv, timeout, env):
        raise PermissionError(argv[0])

    with pytest.raises(ClusterError, match="must be installed here, is missing"):
        Slurm(hidden).partitions()


def test_a_refusal_is_an_error_that_quotes_slurm():
    with pytest.raises(ClusterError, match="Access/permission denied"):
        Slurm(Answers((1, "", "scontrol: error: Access/permission denied"))).requeue("15")


def test_without_slurm_the_message_says_what_to_do():
    def missing(argv, timeout, env):
        raise FileNotFoundError(argv[0])

    with pytest.raises(ClusterError, match=r"must be installed here, is missing .*slurm.executor: local"):
        Slurm(missing).partitions()


@pytest.mark.parametrize("job_id", ["15; rm -rf /", "", "15 16", "-15", "a"])
def test_only_numbers_are_taken_for_job_ids(job_id):
    with pytest.raises(ClusterError, match="job id must be a number"):
        Slurm(Answers((0, "", ""))).cancel(job_id)


def test_a_signal_goes_to_the_step_and_not_to_the_batch_script():
    answers = Answers((0, "", ""))
    Slurm(answers).signal("15.2", "USR2")
    assert answers.asked == [["scancel", "--signal=USR2", "15.2"]]


def test_cancelling_a_job_that_is_gone_is_no_error():
    Slurm(Answers((1, "", "scancel: error: Kill job error on job id 15: Invalid job id specified"))).cancel("15")


def test_an_update_that_slurm_does_not_take_is_said_not_raised():
    assert (
        Slurm(Answers((1, "", "slurm_update error: Job is no longer pending"))).update("15", ExcNodeList="n1") is False
    )


def test_jobs_that_ended_are_not_in_the_queue():
    rows = "1|COMPLETED|None|x|c\n2|PENDING|Resources|x|c\n3|COMPLETING|None|x|c\n"
    assert [row.job_id for row in Slurm(Answers((0, rows, ""))).queue("me", "x")] == ["2", "3"]


def test_a_cluster_without_accounts_is_recognised():
    assert not Slurm(Answers((0, "AccountingStorageType   = accounting_storage/none\n", ""))).has_accounting()
    assert Slurm(Answers((0, "AccountingStorageType   = accounting_storage/slurmdbd\n", ""))).has_accounting()


def test_sacct_that_fails_means_no_accounts():
    answers = Answers((0, "AccountingStorageType = accounting_storage/slurmdbd\n", ""), (1, "", "Connection refused"))
    assert not Slurm(answers).has_accounting()


def test_a_host_without_sacct_has_no_accounts():
    def only_scontrol(argv, timeout, env):
        if argv[0] == "sacct":
            raise FileNotFoundError(argv[0])
        return Completed(tuple(argv), 0, "AccountingStorageType = accounting_storage/slurmdbd\n", "")

    assert not Slurm(only_scontrol).has_accounting()


def test_commands_run_without_the_settings_of_an_enclosing_job(monkeypatch):
    for name in ("SLURM_JOB_ID", "SQUEUE_PARTITION", "SLURM_TIME_FORMAT"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("SLURM_CONF", "/etc/there.conf")
    answers = Answers((0, "", ""))
    Slurm(answers).partitions()
    env = answers.environments[0]
    assert "SLURM_JOB_ID" not in env
    assert "SQUEUE_PARTITION" not in env
    assert (env["SLURM_CONF"], env["SLURM_TIME_FORMAT"]) == ("/etc/there.conf", "%s")


def test_a_job_submitted_from_a_job_goes_to_the_same_cluster_and_inherits_nothing(monkeypatch):
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "100")
    monkeypatch.setenv("SLURM_CONF", "/etc/there.conf")
    with clean_environment():
        assert "SLURM_MEM_PER_CPU" not in os.environ
        assert os.environ["SLURM_CONF"] == "/etc/there.conf"
    assert os.environ["SLURM_MEM_PER_CPU"] == "100"


def test_srun_is_not_told_the_old_node_list():
    env = without_slurm({"SLURM_JOB_NODELIST": "node[1-5]", "SLURM_NNODES": "5", "SLURM_CONF": "c", "PATH": "p"})
    assert env == {"SLURM_CONF": "c", "PATH": "p"}
