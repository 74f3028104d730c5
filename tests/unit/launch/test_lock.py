import os
import subprocess
import sys

import pytest

from steelrail.errors import BusyError
from steelrail.launch.lock import holder, only_driver

CHILD = """
import sys, time
from pathlib import Path
from steelrail.launch.lock import only_driver
with only_driver(Path(sys.argv[1]), "demo"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def child(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()


def test_a_second_driver_is_refused_and_told_who_holds_the_run(tmp_path, child):
    with pytest.raises(BusyError, match=rf"process {child.pid} on "), only_driver(tmp_path, "demo"):
        pass


def test_the_lock_of_a_killed_driver_does_not_count(tmp_path, child):
    child.kill()
    child.wait()
    with only_driver(tmp_path, "demo"):
        assert holder(tmp_path) == f"process {os.getpid()} on {os.uname().nodename}"


def test_a_second_driver_in_the_same_process_is_refused_too(tmp_path):
    with only_driver(tmp_path, "demo"), pytest.raises(BusyError), only_driver(tmp_path, "demo"):
        pass


def test_a_run_that_nobody_drives_has_no_holder(tmp_path):
    with only_driver(tmp_path, "demo"):
        pass
    assert holder(tmp_path) is None


def test_somebody_who_asks_again_and_again_who_drives_keeps_no_driver_out(tmp_path):
    ask = "import sys, pathlib\nfrom steelrail.launch.lock import holder\nprint('asks', flush=True)\n"
    ask += "while True: holder(pathlib.Path(sys.argv[1]))"
    asking = subprocess.Popen([sys.executable, "-c", ask, str(tmp_path)], stdout=subprocess.PIPE)
    assert asking.stdout.readline() == b"asks\n"
    try:
        for _ in range(300):
            with only_driver(tmp_path, "demo"):
                pass
    finally:
        asking.kill()
        asking.communicate()
