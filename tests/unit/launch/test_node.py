"""The process that a node's ranks are forked from, over real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from steelrail.artifacts.trainer import EXIT_FULL
from steelrail.clients import process
from steelrail.clients.ends import read_ends
from steelrail.clients.ranks import RankPlace
from steelrail.formats.srun import TaskEnd
from steelrail.launch.node import _HELD_BYTES, Member, Node, _take, _who_killed

RANK = """
import json, os, signal, sys, time
from pathlib import Path
PRELOAD = ("heavy_part",)
folder = Path(__file__).parent
def main(argv):
    import heavy_part
    rank = int(os.environ["RANK"])
    (folder / f"name-{rank}").write_text(Path("/proc/self/comm").read_text())
    (folder / f"pid-{rank}").write_text(f"{os.getpid()} {heavy_part.loaded_by} {os.environ['WORLD_SIZE']}")
    plan = json.loads(argv[1]).get(str(rank), "done")
    if plan == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if plan == "raise":
        raise ValueError("bad")
    if plan == "full":
        from steelrail.artifacts.files import append_line
        append_line(Path("/dev/full"), b"word")
    if plan == "wait":
        time.sleep(600)
    if plan.startswith("half"):
        os.write(1, b"half a line")
    if plan == "half and wait":
        time.sleep(600)
    if plan.startswith("tell"):
        print(os.environ[plan.split()[1]], list(signal.sigpending()), flush=True)
    if plan == "flood":
        for _ in range(64):
            os.write(1, b"x" * 2**20)
    if plan == "say":
        sys.stdout.write("one\\ntwo")
        sys.stderr.write("x" * 200_000 + "\\n")
    return int(plan) if plan.isdigit() else 0
"""
FLOOD_BYTES = 64 * 2**20
HEAVY = "import os\nloaded_by = os.getpid()\n"


@pytest.fixture
def start(tmp_path):
    started = []

    def begin(ranks=2, node=0, nodes=1, stdout=subprocess.PIPE, wait=False, **plan):
        (tmp_path / "a_rank.py").write_text(RANK)
        (tmp_path / "heavy_part.py").write_text(HEAVY)
        place = {"SLURM_PROCID": node, "SLURM_STEP_NUM_TASKS": nodes, "SLURM_STEP_NUM_NODES": nodes}
        place |= {"SLURM_LOCALID": 0, "SLURM_NODEID": node, "SLURMD_NODENAME": f"node{node + 1}"}
        env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        env |= {name: str(value) for name, value in place.items()}
        env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
        plans = json.dumps({name.removeprefix("r"): what for name, what in plan.items()})
        argv = [sys.executable, "-u", "-m", "steelrail.launch.node", str(ranks), str(tmp_path / "log")]
        argv += [*(["--wait"] if wait else []), "a_rank", plans]
        one = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=stdout, start_new_session=True)
        started.append(one)
        return one

    yield begin
    for one in started:
        if one.poll() is None:
            os.killpg(one.pid, signal.SIGKILL)
        for pipe in (one.stdin, one.stdout):
            if pipe is not None:
                pipe.close()
        one.wait()


def pids(folder, count=2):
    deadline = time.monotonic() + 30
    while len(found := [path for path in folder.glob("pid-*") if path.read_text()]) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return [int(path.read_text().split()[0]) for path in sorted(found)]


def await_heard(pid, number):
    """Return once a process catches or blocks a signal: before, it would be its end."""
    end, bit = time.monotonic() + 20, 1 << (number - 1)
    while time.monotonic() < end:
        fields = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        if bit & (int(fields["SigCgt"], 16) | int(fields["SigBlk"], 16)):
            return
        time.sleep(0.05)
    pytest.fail(f"{number.name} is not heard within 20 s")


def gone(pid):
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return True


def nobody_left(node):
    """All of the process group are gone, those too that had not said a word yet."""
    deadline = time.monotonic() + 10
    while True:
        try:
            os.killpg(node.pid, 0)
        except ProcessLookupError:
            return True
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_is_heavy_is_loaded_once_a_node_and_every_rank_knows_its_place(start, tmp_path):
    node = start(node=1, nodes=4)
    assert node.wait(30) == 0
    assert sorted(path.name for path in tmp_path.glob("pid-*")) == ["pid-2", "pid-3"]
    said = [(tmp_path / f"pid-{rank}").read_text().split()[1:] for rank in (2, 3)]
    assert said == [[str(node.pid), "8"]] * 2
    assert (tmp_path / "name-3").read_text() == "rank-3\n"
    assert read_ends(tmp_path / "log", 2) == ()


def test_ranks_that_wait_begin_at_the_word_and_with_what_it_tells_them(start, tmp_path):
    node = start(wait=True, r0="tell WORD", r1="tell WORD")
    await_heard(node.pid, signal.SIGUSR2)
    assert node.poll() is None and not list(tmp_path.glob("pid-*"))
    # Meant for the ranks of the attempt before.
    node.send_signal(signal.SIGUSR2)
    out, _ = node.communicate(b'{"WORD": "go on"}\n', timeout=30)
    assert (node.returncode, sorted(out.splitlines())) == (0, [b"0: go on []", b"1: go on []"])


@pytest.mark.parametrize("end", [lambda node: node.stdin.close(), lambda node: node.terminate()])
def test_what_waits_ends_without_a_rank_when_nobody_will_give_the_word(start, tmp_path, end):
    node = start(wait=True)
    time.sleep(1.0)
    end(node)
    assert node.wait(30) == 0
    assert not list(tmp_path.glob("pid-*"))


def test_every_line_is_marked_with_its_rank_and_a_long_one_comes_in_marked_pieces(start):
    out, _ = start(r1="say").communicate(timeout=30)
    first, *pieces, end = out.split(b"\n")
    assert (first, end) == (b"1: one", b"")
    assert b"".join(piece.removeprefix(b"1: ") for piece in pieces) == b"two" + b"x" * 200_000
    assert all(piece.startswith(b"1: ") and len(piece) <= 2 * 65_536 for piece in pieces) and len(pieces) > 1


def test_the_rest_without_an_end_is_passed_on_when_its_rank_ends(start):
    out, _ = start(r1="half").communicate(timeout=30)
    assert out == b"1: half a line\n"


def test_a_line_whose_end_does_not_come_is_seen_while_its_rank_waits(start):
    node = start(r1="half and wait")
    began = time.monotonic()
    assert node.stdout.readline() == b"1: half a line\n"
    assert node.poll() is None and time.monotonic() - began < 20


def test_much_output_without_an_end_is_passed_on_in_time_that_grows_with_it_alone(start):
    out, _ = start(r1="flood").communicate(timeout=30)
    assert out.replace(b"\n1: ", b"") == b"1: " + b"x" * FLOOD_BYTES + b"\n"


def test_small_writes_are_held_until_their_line_ends_and_no_longer_than_they_are_long(capfd):
    one = Member(3, 0, 0)
    for text in (b"a", b"b", b"c\nd", b"e\n\nf"):
        _take(one, text)
    assert (capfd.readouterr().out, bytes(one.held)) == ("3: abc\n3: de\n3: \n", b"f")
    _take(one, b"y" * (_HELD_BYTES - 1))
    assert (capfd.readouterr().out, bytes(one.held)) == ("3: f" + "y" * (_HELD_BYTES - 1) + "\n", b"")


def test_a_killed_rank_takes_the_others_of_its_node_down_and_is_named_as_the_first(start, tmp_path):
    node = start(ranks=3, node=1, nodes=2, r4="kill", r3="wait", r5="wait")
    assert node.wait(30) == 128 + signal.SIGKILL
    first, *others = read_ends(tmp_path / "log", 3)
    assert (first.rank, first.host, first.how, first.exit_code, first.killed) == (4, "node2", "Killed", None, True)
    assert sorted((end.rank, end.killed) for end in others) == [(3, False), (5, False)]
    assert nobody_left(node)


def test_a_rank_that_the_kernel_killed_for_want_of_memory_is_told_from_one_that_somebody_killed(monkeypatch, tmp_path):
    node = Node(RankPlace(0, 1, 0, 0, 1, "node1"), tmp_path / "ends", os.getpid(), oom_kills=7)
    monkeypatch.setattr(process, "oom_kills", lambda: 7)
    assert _who_killed(node, "Killed") == "Killed"
    monkeypatch.setattr(process, "oom_kills", lambda: 8)
    end = TaskEnd(0, "node1", _who_killed(node, "Killed"), None)
    assert (end.how.partition(":")[0], end.out_of_memory, end.killed) == ("Out Of Memory, it seems", True, True)


def test_the_code_of_the_first_bad_end_is_that_of_the_node(start, tmp_path):
    assert start(r0="7", r1="wait").wait(30) == 7
    assert next((end.rank, end.exit_code) for end in read_ends(tmp_path / "log", 2)) == (0, 7)


def test_an_exception_that_a_rank_did_not_catch_is_in_the_log(start):
    out, _ = start(r1="raise").communicate(timeout=30)
    assert b"1: ValueError: bad" in out


@pytest.mark.parametrize("code", ["75", "76"])
def test_ranks_that_saved_or_rolled_back_are_no_bad_end_and_the_others_go_on(start, tmp_path, code):
    node = start(r0=code, r1="wait")
    pid = pids(tmp_path)[1]
    time.sleep(3.0)
    assert node.poll() is None
    os.kill(pid, signal.SIGTERM)
    assert node.wait(30) == 128 + signal.SIGTERM


def test_ranks_end_with_the_process_that_they_were_forked_from(start, tmp_path):
    node = start(r0="wait", r1="wait")
    living = pids(tmp_path)
    os.kill(node.pid, signal.SIGKILL)
    assert all(gone(pid) for pid in living)


def test_signals_to_save_and_for_stacks_leave_the_nodes_process_in_place(start, tmp_path):
    node = start(r0="wait", r1="wait")
    pids(tmp_path)
    for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGQUIT):
        os.kill(node.pid, number)
    time.sleep(1.0)
    assert node.poll() is None


def test_a_part_that_cannot_be_loaded_is_left_to_the_ranks_to_say(start, tmp_path):
    (tmp_path / "heavy_part").mkdir()
    (tmp_path / "heavy_part" / "__init__.py").write_text("raise OSError('no such disk')")
    out, _ = start().communicate(timeout=30)
    assert b"0: OSError: no such disk" in out and b"1: OSError: no such disk" in out


def test_output_that_is_no_longer_taken_ends_the_ranks_and_is_told_by_the_exit_code(start, tmp_path):
    with Path("/dev/full").open("wb") as full:
        node = start(r0="wait", r1="say", stdout=full)
        assert node.wait(30) == EXIT_FULL
    assert nobody_left(node)


def test_a_rank_that_could_write_no_word_for_want_of_space_tells_it_by_its_exit_code(start, tmp_path):
    assert start(r0="full", r1="wait").wait(30) == EXIT_FULL
    assert read_ends(tmp_path / "log", 2)[0].exit_code == EXIT_FULL
