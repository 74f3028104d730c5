from pathlib import Path

from fabric_facts import a_run

from steelrail.fabric.folder import JobFolder, fabric_folder


def test_tries_are_counted_on_in_their_own_order(tmp_path: Path) -> None:
    job = JobFolder(tmp_path)
    assert job.tries() == ()
    for _ in range(11):
        job.next_try().root.mkdir()
    assert [one.root.name for one in job.tries()] == [f"try-{number}" for number in range(1, 12)]


def test_files_of_two_ranks_are_never_one(tmp_path: Path) -> None:
    job = JobFolder(tmp_path)
    paths = {
        path for rank in (0, 1) for path in (job.error(rank), job.doing(rank), job.stacks(rank), job.nccl_log(rank))
    }
    assert len(paths) == 8


def test_the_stage_has_a_folder_of_its_own_in_the_run() -> None:
    assert fabric_folder(a_run()) == Path("results/t/fabric")
