from pathlib import Path

from steelrail.artifacts.files import write_artifact
from steelrail.clients.ends import srun_file
from steelrail.config.schema import Shape
from steelrail.fabric.aftermath import may_go_better, say_of_try
from steelrail.fabric.facts import RankError
from steelrail.fabric.folder import JobFolder
from steelrail.fabric.whereabouts import Whereabouts


def shape(ranks: int) -> Shape:
    return Shape(nodes=1, gpus_per_node=0, ranks_per_node=ranks, device="cpu")


def failed(folder: JobFolder, rank: int, kind: str, again: bool, message: str = "so it is") -> None:
    fault = RankError(rank=rank, host=f"node{rank + 1}", kind=kind, message=message, doing="pairs", again=again)
    write_artifact(folder.error(rank), fault)


def test_a_cause_that_stays_comes_before_who_is_absent_and_that_before_lost_connections(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    failed(folder, 0, "RuntimeError", again=True)
    failed(folder, 1, "AbsentError", again=True)
    failed(folder, 2, "FabricError", again=False)
    said = say_of_try(folder, shape(3))
    assert said.index("rank 2") < said.index("rank 1") < said.index("rank 0")
    assert said.startswith("rank 2 on node3 (pairs): FabricError: so it is")


def test_ranks_that_say_nothing_are_told_by_where_they_were(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    write_artifact(folder.doing(0), Whereabouts(rank=0, host="node1", doing="connect", since=1.0))
    assert say_of_try(folder, shape(2)) == "no rank said why; rank 0 was in connect; rank 1 never started"


def test_another_try_is_worth_it_unless_a_rank_named_a_cause_that_stays(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    assert may_go_better(folder)
    failed(folder, 0, "RuntimeError", again=True)
    assert may_go_better(folder)
    failed(folder, 1, "FabricError", again=False)
    assert not may_go_better(folder)


def test_of_ranks_that_were_killed_without_a_word_srun_says_how(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    srun_file(folder.log).write_text("srun: error: node1: task 0: User defined signal 2\n")
    assert say_of_try(folder, shape(2)).startswith("rank 0 on node1: User defined signal 2; ")
