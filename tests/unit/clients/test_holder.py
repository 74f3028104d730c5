import dataclasses
import subprocess
import sys

from steelrail.clients.holder import Holder, this_process


def test_this_process_lives_and_survives_being_written_as_text() -> None:
    assert this_process().lives()
    assert this_process() == Holder.parse(this_process().text())


def test_a_pid_that_came_back_is_another_process() -> None:
    assert not dataclasses.replace(this_process(), start_ticks=1).lives()


def test_an_ended_process_does_not_live_even_as_a_zombie() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = dataclasses.replace(this_process(), pid=child.pid)
    from steelrail.clients import holder as module

    holder = dataclasses.replace(holder, start_ticks=module._start_ticks(child.pid) or 0)
    assert holder.lives()
    child.kill()
    child.wait()
    assert not holder.lives()


def test_a_process_on_another_host_counts_as_alive() -> None:
    assert dataclasses.replace(this_process(), host="elsewhere", pid=1).lives()
