from pathlib import Path

from steelrail.formats.srun import parse_task_ends

DATA = Path(__file__).parents[2] / "data" / "slurm"


def test_ends_come_in_order_with_rank_host_and_code():
    ends = parse_task_ends((DATA / "srun-task-ends.txt").read_text())
    assert [(end.rank, end.host, end.exit_code) for end in ends] == [
        (5, "node3", None),
        (0, "node1", 75),
        (1, "node1", 75),
        (2, "node2", None),
        (6, "node4", 1),
        (7, "node4", 1),
        (3, "node2", None),
    ]


def test_killed_is_told_from_taken_down_and_out_of_memory_is_named():
    ends = {end.rank: end for end in parse_task_ends((DATA / "srun-task-ends.txt").read_text())}
    assert ends[5].killed
    assert not ends[2].killed
    assert not ends[0].killed
    assert ends[3].out_of_memory
