from steelrail.launch.environment import rank_environment


def test_ranks_get_the_frozen_code_and_meet_on_the_first_node(demo):
    env = rank_environment(demo, "/code", "node3", {"STEELRAIL_EPOCH": "4"})
    assert (env["PYTHONPATH"], env["STEELRAIL_MASTER_ADDR"], env["STEELRAIL_EPOCH"]) == ("/code", "node3", "4")
    assert 0 < int(env["STEELRAIL_MASTER_PORT"]) < 65536
    assert env["OMP_NUM_THREADS"] == str(demo.slurm.cpus_per_rank)


def test_the_run_files_variables_win_over_ours(demo, change):
    run = change(demo, "slurm", environment={"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "3", "X": "theirs"})
    env = rank_environment(run, "/code", "node1", {"X": "ours"})
    assert (env["NCCL_DEBUG"], env["OMP_NUM_THREADS"], env["X"]) == ("WARN", "3", "theirs")
