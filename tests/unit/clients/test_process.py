import os
import sys
import time

import pytest

from steelrail.clients import process


def test_output_errors_and_exit_code_are_kept_apart():
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    done = process.run([sys.executable, "-c", code], 30)
    assert (done.exit_code, done.stdout, done.stderr, done.ok) == (3, "out\n", "err\n", False)


def test_a_program_that_takes_too_long_is_ended():
    began = time.monotonic()
    done = process.run(["sleep", "30"], 0.2)
    assert done.exit_code == process.TIMED_OUT
    assert time.monotonic() - began < 10


def test_arguments_never_meet_a_shell():
    assert process.run(["echo", "$(id); `id` > x | y"], 10).stdout == "$(id); `id` > x | y\n"


def test_a_missing_program_is_said():
    with pytest.raises(FileNotFoundError):
        process.run(["no-such-program-here"], 1)


def test_a_started_program_appends_to_its_output(tmp_path):
    out = tmp_path / "logs" / "out.log"
    for _ in range(2):
        process.start(["echo", "line"], dict(os.environ), out).wait(10)
    assert out.read_text() == "line\nline\n"


def test_this_process_began_before_now_and_a_gone_one_has_no_start():
    began = process.started(os.getpid())
    assert began is not None
    assert 0 < time.time() - began < 3600
    assert process.started(2**22 + 1) is None
    assert process.start_ticks(os.getpid()) > 0


LIMITED = """
from steelrail.clients.process import memory_limited
with memory_limited(50_000_000):
    try:
        bytearray(200_000_000)
    except MemoryError:
        print("refused")
print(len(bytearray(200_000_000)))
"""


def test_memory_is_limited_for_a_while_and_no_longer() -> None:
    assert process.run([sys.executable, "-c", LIMITED], 60).stdout == "refused\n200000000\n"
