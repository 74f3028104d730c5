"""Real ranks: four processes over gloo on loopback, as two nodes of two; and single ranks that wait in vain."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from fabric_facts import a_run

from steelrail.artifacts.files import read_artifact
from steelrail.clients.ranks import free_port
from steelrail.fabric.facts import Facts, RankError
from steelrail.fabric.folder import JobFolder
from steelrail.fabric.judge import judge
from steelrail.fabric.whereabouts import Whereabouts

# What every rank runs: the job, then the quick check twice, the second time with one rank whose products are wrong.
WORKER = dedent("""
    import json, os, sys, time
    from dataclasses import asdict, replace
    from pathlib import Path
    import torch
    import torch.distributed as dist
    from steelrail.clients.ranks import rank_place
    from steelrail.fabric import quick, rank

    folder = Path(sys.argv[1])
    code = rank.main(["rank", str(folder)])
    dist.destroy_process_group()
    run, place = rank.read_run(folder / "run.json"), rank_place()
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{sys.argv[2]}", rank=place.rank, world_size=place.world_size)
    check = lambda: quick.quick_check(run, place, torch.device("cpu"), None, time.monotonic)
    sound = check()
    true_check = quick.check_device
    if place.rank == 3:
        quick.check_device = lambda *asked: replace(true_check(*asked), digest="wrong")
    damaged = check()
    dist.destroy_process_group()
    said = {"code": code, "sound": asdict(sound), "damaged": asdict(damaged)}
    (folder / f"said-{place.rank}.json").write_text(json.dumps(said))
""")


def environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    place = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank % 2, "LOCAL_WORLD_SIZE": 2}
    master = {"STEELRAIL_MASTER_ADDR": "127.0.0.1", "STEELRAIL_MASTER_PORT": port, "STEELRAIL_HOST": "ab"[rank // 2]}
    clean = {name: text for name, text in os.environ.items() if not name.startswith("SLURM")}
    return clean | {name: str(value) for name, value in (place | master).items()} | {"GLOO_SOCKET_IFNAME": "lo"}


def job_folder(root: Path) -> JobFolder:
    run = a_run("cpu")
    fabric = run.fabric.model_copy(update={"repeats": 5, "pair_bytes": 200_000, "matrix_size": 64})
    shape = run.shape.model_copy(update={"nodes": 2})
    folder = JobFolder(root)
    folder.run_file.write_text(run.model_copy(update={"fabric": fabric, "shape": shape}).model_dump_json())
    return folder


def start(code: str, rank: int, world_size: int, port: int, *words: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", code, *words], env=environment(rank, world_size, port))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobFolder:
    folder = job_folder(tmp_path_factory.mktemp("job"))
    port, second_port = free_port(), free_port()
    ranks = [start(WORKER, rank, 4, port, str(folder.root), str(second_port)) for rank in range(4)]
    try:
        assert [rank.wait(150) for rank in ranks] == [0, 0, 0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    return folder


def said(job: JobFolder) -> list[dict[str, Any]]:
    return [json.loads((job.root / f"said-{rank}.json").read_text()) for rank in range(4)]


def test_four_ranks_write_one_report_of_two_nodes(job: JobFolder) -> None:
    facts = read_artifact(job.report, Facts)
    assert [one["code"] for one in said(job)] == [0, 0, 0, 0]
    assert [(node.host, node.ranks) for node in facts.nodes] == [("a", (0, 1)), ("b", (2, 3))]
    assert len({one.matrix_digest for node in facts.nodes for one in node.devices}) == 1


def test_the_nodes_exchange_was_timed_and_arrived_whole(job: JobFolder) -> None:
    (pair,) = read_artifact(job.report, Facts).pairs
    assert (pair.first, pair.second, pair.size_bytes, pair.intact) == ("a", "b", 200_000, True)
    assert 0 < pair.seconds_p50 <= pair.seconds_p99
    assert pair.gb_per_s == pytest.approx(200_000 / pair.seconds_p50 / 1e9)


def test_the_world_was_timed_at_the_models_own_sizes(job: JobFolder) -> None:
    world = read_artifact(job.report, Facts).world
    block = 4 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64)
    assert {(one.what, one.collective): one.size_bytes for one in world} == {
        ("block", "all_gather"): block,
        ("block", "reduce_scatter"): block,
        ("block", "all_reduce"): block,
        ("root", "all_gather"): 4 * (2 * 256 * 64 + 64),
        ("root", "reduce_scatter"): 4 * (2 * 256 * 64 + 64),
        ("small", "all_reduce"): 4,
    }
    assert all(0 < one.seconds_p50 <= one.seconds_p95 <= one.seconds_p99 for one in world)


def test_what_was_found_is_fit(job: JobFolder) -> None:
    assert judge(read_artifact(job.report, Facts), a_run("cpu")).fit


def test_the_quick_check_passes_on_every_rank_within_its_budget(job: JobFolder) -> None:
    results = [one["sound"] for one in said(job)]
    assert all(result == results[0] for result in results)
    assert results[0]["ok"] and results[0]["worst_link"] in ("a-b", "b-a")
    assert results[0]["seconds"] < a_run().fabric.quick_seconds


def test_one_rank_with_wrong_bits_stops_all_ranks_alike(job: JobFolder) -> None:
    results = [one["damaged"] for one in said(job)]
    assert all(result == results[0] for result in results)
    # On busy cores a link may look slow as well.
    assert not results[0]["ok"] and "b" in results[0]["culprits"] and "b/gpu1 multiplies" in results[0]["detail"]


def test_every_rank_says_that_it_is_done(job: JobFolder) -> None:
    found = [read_artifact(job.doing(rank), Whereabouts) for rank in range(4)]
    assert [(one.rank, one.host, one.doing) for one in found] == [(rank, "aabb"[rank], "done") for rank in range(4)]


IN_VAIN = "import sys; from steelrail.fabric import rank, rank_measure; {}; rank.leave(rank.main(sys.argv))"


def test_a_rank_that_waits_in_vain_names_who_is_absent_and_may_be_tried_again(tmp_path: Path) -> None:
    folder = job_folder(tmp_path)
    code = IN_VAIN.format("rank_measure.wait_seconds = lambda run: 1.0")
    assert start(code, 0, 4, free_port(), str(tmp_path)).wait(60) == 7
    fault = read_artifact(folder.error(0), RankError)
    assert "without ranks [1, 2, 3] of nodes [0, 1]" in fault.message
    assert (fault.kind, fault.doing, fault.again) == ("AbsentError", "meet", True)
    assert not folder.report.exists()


def test_a_fault_of_the_node_is_not_tried_again(tmp_path: Path) -> None:
    folder = job_folder(tmp_path)
    folder.run_file.write_text("{}")
    assert start(IN_VAIN.format("pass"), 0, 4, free_port(), str(tmp_path)).wait(60) == 7
    assert not read_artifact(folder.error(0), RankError).again


DAMAGED = """
import sys
from steelrail.artifacts.fabric import PairMeasurement
from steelrail.fabric import rank, rank_measure
pair = dict(first="a", second="b", size_bytes=1, gb_per_s=1.0, seconds_p50=1.0, seconds_p99=1.0)
rank_measure.measure_pairs = lambda world: (PairMeasurement(**pair, intact=False),)
rank.leave(rank.main(sys.argv))
"""


def test_the_world_is_not_measured_over_links_that_are_unfit(tmp_path: Path) -> None:
    folder, port = job_folder(tmp_path), free_port()
    ranks = [start(DAMAGED, rank, 2, port, str(tmp_path)) for rank in range(2)]
    assert [rank.wait(60) for rank in ranks] == [0, 0]
    facts = read_artifact(folder.report, Facts)
    assert (facts.world, judge(facts, a_run("cpu")).fit) == ((), False)


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[JobFolder, "subprocess.Popen[bytes]"]]:
    """A rank that waits for three others that never come, with its stacks due after two seconds."""
    folder = job_folder(tmp_path_factory.mktemp("waiting"))
    one = start(IN_VAIN.format("rank.stacks_seconds = lambda run: 2.0"), 0, 4, free_port(), str(folder.root))
    yield folder, one
    one.kill()


def test_a_rank_that_waits_leaves_its_stacks_unasked_before_its_try_is_over(
    waiting: tuple[JobFolder, "subprocess.Popen[bytes]"],
) -> None:
    folder, _ = waiting
    assert "Timeout (0:00:02)" in text_in(folder.stacks(0), "Timeout")


def test_a_rank_writes_its_stacks_when_asked_and_goes_on_waiting(
    waiting: tuple[JobFolder, "subprocess.Popen[bytes]"],
) -> None:
    folder, one = waiting
    wait_for(lambda: read_artifact(folder.doing(0), Whereabouts).doing == "meet")
    folder.stacks(0).write_text("")
    one.send_signal(signal.SIGQUIT)
    assert "meeting.py" in text_in(folder.stacks(0), "in meet\n")
    assert one.poll() is None


def test_a_rank_ends_although_pythons_own_ending_would_wait(tmp_path: Path) -> None:
    folder = job_folder(tmp_path)
    folder.run_file.write_text("{}")
    code = "import atexit, runpy, time; atexit.register(time.sleep, 3600); runpy.run_module({!r}, run_name='__main__')"
    code = code.format("steelrail.fabric.rank")
    assert start(code, 0, 4, free_port(), str(tmp_path)).wait(60) == 7


def text_in(path: Path, word: str) -> str:
    """Return a file's text once it holds a word."""
    wait_for(lambda: path.exists() and word in path.read_text())
    return path.read_text()


def wait_for(sign: Callable[[], bool], seconds: float = 60.0) -> None:
    give_up = time.monotonic() + seconds
    while not sign():
        assert time.monotonic() < give_up
        time.sleep(0.05)
