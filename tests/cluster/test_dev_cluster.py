"""The dev cluster is what docs/dev-cluster.md says: the other cluster tests build on these claims."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dev_cluster import Cluster

CONDITIONAL_PUT = """
import sys, boto3, botocore
url, bucket, key = sys.argv[1:]
s3 = boto3.client("s3", endpoint_url=url, region_name="us-east-1")
try:
    answer = s3.put_object(Bucket=bucket, Key=key, Body=b"x", IfNoneMatch="*")
except botocore.exceptions.ClientError as error:
    answer = error.response
print(answer["ResponseMetadata"]["HTTPStatusCode"])
"""

ADDRESS = "echo $(hostname) $SLURM_TOPOLOGY_ADDR"

ALL_REDUCE = """
import os, torch, torch.distributed as dist
rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo", init_method="tcp://node1:29533", rank=rank, world_size=world)
x = torch.tensor([rank + 1.0])
dist.all_reduce(x)
print(int(x))
"""


def conditional_put(cluster: Cluster) -> str:
    """HTTP status of a PUT, only if absent, of one key per test."""
    key = f"tests/{cluster.folder.name}"
    return cluster.user("python3", "-c", CONDITIONAL_PUT, cluster.s3_url, cluster.bucket, key).strip()


def test_a_four_node_step_runs_on_four_named_hosts_of_one_leaf(cluster: Cluster) -> None:
    out = cluster.user("srun", "-N4", "--switches=1", "sh", "-c", ADDRESS)
    assert [f"node{n} spine.leaf1.node{n}" for n in (1, 2, 3, 4)] == sorted(out.splitlines())


def test_a_one_node_job_is_billed_all_sixteen_gpus(cluster: Cluster) -> None:
    job = cluster.submit("true", "-N1", "-n1")
    cluster.await_state(job, "COMPLETED", 30)
    cluster.wait_until(lambda: [s.state for s in cluster.segments(job)] == ["COMPLETED"], 60, "COMPLETED in sacct")
    assert "gres/gpu=16" in cluster.segments(job)[0].tres.split(",")


def test_each_host_has_a_fast_disk_of_its_own(cluster: Cluster) -> None:
    mark = cluster.folder.name
    out = cluster.user("srun", "-N4", "sh", "-c", f"echo $(hostname) >/mnt/fastssd/{mark}; cat /mnt/fastssd/{mark}")
    assert ["node1", "node2", "node3", "node4"] == sorted(out.split())


def test_a_second_conditional_put_gives_412(cluster: Cluster) -> None:
    assert ["200", "412"] == [conditional_put(cluster), conditional_put(cluster)]


def test_gloo_reaches_across_hosts(cluster: Cluster) -> None:
    out = cluster.user("env", "GLOO_SOCKET_IFNAME=eth0", "srun", "-N2", "python3", "-c", ALL_REDUCE)
    assert ["3", "3"] == out.split()


def test_an_urgent_job_preempts_and_the_victim_runs_again_under_its_id(cluster: Cluster) -> None:
    job = cluster.submit("echo restart ${SLURM_RESTART_COUNT:-0}; sleep 600", "-N4", "--requeue")
    cluster.await_log(job, "restart 0", 30)
    cluster.submit("sleep 1", "--partition=urgent", "-N1", "--time=1")
    cluster.await_log(job, "restart 1", 60)
    cluster.await_segments(job, ("PREEMPTED", "node[1-4]"), ("RUNNING", "node[1-4]"))


def test_the_owner_requeues_his_job_soon_and_off_a_node(cluster: Cluster) -> None:
    cluster.control("spare", "up")
    job = cluster.submit("echo restart ${SLURM_RESTART_COUNT:-0}; sleep 600", "-N4", "--requeue")
    cluster.await_log(job, "restart 0", 30)
    cluster.user("scontrol", "requeue", job)
    cluster.await_state(job, "PENDING", 30)
    cluster.user("scontrol", "update", f"JobId={job}", "StartTime=now+1", "ExcNodeList=node2")
    cluster.await_log(job, "restart 1", 90)
    cluster.await_segments(job, ("REQUEUED", "node[1-4]"), ("RUNNING", "node[1,3-5]"))


def test_a_cut_link_ends_in_node_fail_and_a_requeue_onto_the_spare(cluster: Cluster) -> None:
    cluster.control("spare", "up")
    job = cluster.submit("echo restart ${SLURM_RESTART_COUNT:-0}; sleep 600", "-N4", "--requeue")
    cluster.await_log(job, "restart 0", 30)
    cluster.control("cut", "node3")
    cluster.await_log(job, "restart 1", 90)
    cluster.await_segments(job, ("NODE_FAIL", "node[1-4]"), ("RUNNING", "node[1-2,4-5]"))
    cluster.control("mend", "node3")
    cluster.wait_until(lambda: cluster.node("node3") == "idle", 60, "node3 idle again")


def test_a_running_job_outlives_a_restart_of_both_slurm_daemons(cluster: Cluster) -> None:
    job = cluster.submit("echo started; sleep 600", "-N2")
    cluster.await_log(job, "started", 30)
    cluster.control("restart", "slurmctld")
    cluster.control("restart", "slurmdbd")
    assert "RUNNING" == cluster.state(job)


def test_the_s3_server_comes_back_from_a_kill_with_its_objects(cluster: Cluster) -> None:
    assert "200" == conditional_put(cluster)
    cluster.control("s3", "kill")
    cluster.control("s3", "start")
    assert "412" == conditional_put(cluster)
