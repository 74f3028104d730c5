from pathlib import Path

import pytest
import submitit
from submitit.slurm.slurm import _make_sbatch_string

from steelrail.launch.request import (
    extra_parameters,
    fabric_request,
    sbatch_lines,
    show,
    submitit_parameters,
    train_request,
    with_choices,
    with_setup,
)

GOLDEN = Path(__file__).parents[2] / "data" / "launch"
FOLDER = Path("/shared/results/run")
KEY = "0123456789ab"
SHELL = ("HOME", "USER", "LOGNAME", "PATH", "LANG", "AWS_SECRET_ACCESS_KEY", "LD_PRELOAD")


def golden(name):
    return (GOLDEN / name).read_text().rstrip("\n")


def test_the_demo_asks_for_four_whole_nodes_of_sixteen(demo):
    assert show(train_request(demo, KEY, FOLDER, (), SHELL)) == golden("request-demo-train.txt")


def test_the_demo_asks_for_the_fabric_job_once(demo):
    assert show(fabric_request(demo, KEY, FOLDER, SHELL)) == golden("request-demo-fabric.txt")


def test_the_reference_job_asks_for_64_gpus_of_one_rack(llama):
    assert show(train_request(llama, KEY, FOLDER, ("bad1",), SHELL)) == golden("request-llama3-70b-4x16-train.txt")


def test_every_wish_of_the_run_file_is_asked_for(demo, change):
    wishes = {
        "account": "lab",
        "qos": "high",
        "reservation": "friday",
        "constraint": "ib&h100",
        "mail_user": "a@b.org",
        "mail_type": ("END", "FAIL"),
        "exclude": ("n7", "n3"),
        "setup": ("module load cuda", "ulimit -l unlimited"),
        "environment": {"NCCL_IB_HCA": "mlx5_0,mlx5_1", "NCCL_DEBUG": "WARN"},
        "gres": "gpu:h100",
    }
    assert show(train_request(change(demo, "slurm", **wishes), KEY, FOLDER, ("n9",), SHELL)) == golden(
        "request-wishes.txt"
    )


def test_spare_nodes_are_asked_for_by_the_training_job_alone_which_goes_on_without_a_lost_one(demo, change):
    run = change(demo, "slurm", spare_nodes=1)
    train = train_request(run, KEY, FOLDER, (), ())
    assert (train.option("nodes"), train.option("no_kill")) == (5, True)
    assert "#SBATCH --no-kill" in sbatch_lines(train)
    assert fabric_request(run, KEY, FOLDER, ()).option("nodes") == 4
    assert train_request(demo, KEY, FOLDER, (), ()).option("no_kill") is None


def test_secrets_of_the_shell_are_not_exported(demo):
    exported = train_request(demo, KEY, FOLDER, (), SHELL).option("export")
    assert exported == "HOME,USER,LOGNAME,PATH,LANG"


def test_where_the_shell_has_its_credentials_is_exported(demo):
    shell = ("PATH", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")
    exported = train_request(demo, KEY, FOLDER, (), shell).option("export")
    assert exported == "PATH,AWS_SHARED_CREDENTIALS_FILE,AWS_PROFILE"


def test_the_cluster_of_the_shell_is_exported(demo):
    assert train_request(demo, KEY, FOLDER, (), ("PATH", "SLURM_CONF")).option("export") == "PATH,SLURM_CONF"


@pytest.mark.parametrize(("rack", "expected"), [("required", "1@1"), ("preferred", "1@1"), ("any", None)])
def test_one_leaf_switch_is_asked_for_where_the_rack_counts(demo, change, rack, expected):
    assert train_request(change(demo, "shape", rack=rack), KEY, FOLDER, (), SHELL).option("switches") == expected


def test_a_partition_without_gpus_is_not_asked_for_any(demo, change):
    request = train_request(change(demo, "shape", gpus_per_node=0), KEY, FOLDER, (), SHELL)
    assert (request.option("gpus_per_node"), request.option("gres")) == (None, None)


def test_a_resource_of_another_name_is_asked_for_as_gres(demo, change):
    request = train_request(change(demo, "slurm", gres="accelerator"), KEY, FOLDER, (), SHELL)
    assert (request.option("gpus_per_node"), request.option("gres")) == (None, "accelerator:16")


def test_two_folders_of_one_run_name_are_told_apart(demo):
    comments = {
        train_request(demo, KEY, Path(folder), (), SHELL).option("comment") for folder in ("/a/demo", "/b/demo")
    }
    assert len(comments) == 2


def script(request, extra=None):
    return _make_sbatch_string(command="COMMAND", folder="/jobs", **submitit_parameters(request, extra))


def test_submitit_writes_every_option_of_ours_once_and_starts_no_srun(demo):
    request = with_setup(train_request(demo, KEY, FOLDER, (), SHELL), ["export PYTHONPATH='/a b'"])
    lines = script(request).splitlines()
    for line in sbatch_lines(request):
        assert lines.count(line) == 1
    names = [line.split("=")[0] for line in lines if line.startswith("#SBATCH")]
    assert len(names) == len(set(names))
    assert "srun" not in script(request)
    assert "export PYTHONPATH='/a b'" in lines


def test_nothing_of_submitits_own_signal_name_or_key_is_left(demo):
    text = script(train_request(demo, KEY, FOLDER, (), SHELL))
    assert "#SBATCH --signal=USR2@60" in text
    assert "USR2@90" not in text
    assert "wckey" not in text
    assert "--job-name=steelrail-demo-train" in text


def test_submitit_knows_every_parameter_that_we_give_it(demo):
    valid = submitit.SlurmExecutor._valid_parameters()
    assert set(submitit_parameters(train_request(demo, KEY, FOLDER, (), SHELL))) <= valid


def test_a_users_executor_chooses_partition_and_account_but_not_the_shape(demo):
    mine = {
        "partition": "big",
        "account": "lab",
        "nodes": 1,
        "time": 90,
        "gres": "gpu:1",
        "mem": "1GB",
        "exclusive": False,
    }
    request = with_choices(train_request(demo, KEY, FOLDER, (), SHELL), mine)
    assert [request.option(name) for name in ("partition", "account", "time")] == ["big", "lab", 90]
    assert [request.option(name) for name in ("nodes", "mem", "exclusive")] == [4, 0, True]


def test_what_else_a_users_executor_asks_for_is_passed_on(demo):
    mine = {"dependency": "afterok:1", "additional_parameters": {"nice": 10, "signal": "TERM@1"}, "mem_per_cpu": "1G"}
    extra = extra_parameters(mine)
    assert extra == {"dependency": "afterok:1", "nice": 10}
    text = script(train_request(demo, KEY, FOLDER, (), SHELL), extra)
    assert "#SBATCH --dependency=afterok:1" in text
    assert "#SBATCH --nice=10" in text
    assert "TERM@1" not in text
