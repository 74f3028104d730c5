"""Simulated time and processes: tasks that run one at a time, in an order that one seed decides."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

MAX_SECONDS = 100_000.0
FOREVER = math.inf


class Killed(GreenletExit):
    """The process is gone: raised out of whatever call it was in, and out of every later one."""


class HangError(Exception):
    """Something waits and nothing will ever come."""


@dataclass(eq=False)
class Process:
    """One process on one host. While ``frozen_until`` lies ahead it is stopped, as by SIGSTOP."""

    name: str
    host: int = -1
    epoch: int = 0
    dead: bool = False
    frozen_until: float = 0.0
    looked: int = -1  # when it last listed the fence, as a number of the store's mutations


@dataclass(eq=False)
class Task:
    """One thread of a process."""

    process: Process
    body: greenlet
    wake_at: float = 0.0
    until: Callable[[], bool] | None = None
    done: bool = False


@dataclass(eq=False)
class Sim:
    """The clock, the tasks and the one source of chance."""

    rng: random.Random
    now: float = 1_000_000.0
    tasks: list[Task] = field(default_factory=list)
    hub: greenlet = field(default_factory=getcurrent)
    current: Task | None = None

    def start(self, process: Process, work: Callable[[], object], after: float = 0.0) -> Task:
        """Start a thread of ``process``."""

        def body() -> None:
            try:
                work()
            except Killed:
                process.dead = True
            finally:
                task.done = True

        task = Task(process, greenlet(body, self.hub), self.now + after)
        self.tasks.append(task)
        return task

    @property
    def process(self) -> Process:
        """The process that runs now."""
        assert self.current is not None
        return self.current.process

    def pause(self, seconds: float) -> None:
        """Let ``seconds`` pass for the current task."""
        self._yield(self.now + seconds, None)

    def wait(self, until: Callable[[], Any], timeout: float | None = None) -> bool:
        """Wait for ``until``; returns whether it came about."""
        if until():
            return True
        self._yield(FOREVER if timeout is None else self.now + timeout, lambda: bool(until()))
        return bool(until())

    def _yield(self, wake_at: float, until: Callable[[], bool] | None) -> None:
        task = self.current
        assert task is not None
        task.wake_at, task.until = wake_at, until
        if task.process.dead:
            raise Killed
        self.hub.switch()

    def run(self, over: Callable[[], bool]) -> None:
        """Run tasks until ``over``. Raises ``HangError`` when time runs out first. What a task raises comes out."""
        end = self.now + MAX_SECONDS
        while not over():
            task = self._next()
            if task is None or self.now > end:
                raise HangError(f"nothing ends: {[one.process.name for one in self.tasks]}")
            self._step(task)

    def _next(self) -> Task | None:
        """Return one of the tasks that may run now; when there is none, let time pass until there is."""
        self._reap()
        while True:
            soonest, ready = FOREVER, []
            for task in self.tasks:
                at = 0.0 if task.until is not None and task.until() else task.wake_at
                at = max(at, task.process.frozen_until)
                if at <= self.now:
                    ready.append(task)
                elif at < soonest:
                    soonest = at
            if ready:
                return ready[0] if len(ready) == 1 else self.rng.choice(ready)
            if soonest == FOREVER:
                return None
            self.now = soonest

    def _step(self, task: Task) -> None:
        self.current = task
        try:
            task.body.switch()
        finally:
            self.current = None

    def _reap(self) -> None:
        """Unwind what belongs to dead processes."""
        if not any(task.done or task.process.dead for task in self.tasks):
            return
        for task in [one for one in self.tasks if one.process.dead and not one.done]:
            self.current = task
            # One that has not begun just ends.
            task.body.throw(Killed)
            task.done, self.current = True, None
        self.tasks = [task for task in self.tasks if not task.done]

    def end(self) -> None:
        """Kill all that is left."""
        for task in self.tasks:
            task.process.dead = True
        self._reap()

    def threading(self) -> Any:
        """What the code under test sees as the module ``threading``."""
        sim = self

        class Thread:
            def __init__(self, target: Callable[[], object], name: str = "", daemon: bool = False) -> None:
                self._target = target

            def start(self) -> None:
                self._task = sim.start(sim.process, self._target)

            def join(self, timeout: float | None = None) -> None:
                sim.wait(lambda: self._task.done, timeout)

            def is_alive(self) -> bool:
                return not self._task.done

        class Condition:
            """No task is interrupted between its waits, so that the lock itself need not be played."""

            def __enter__(self) -> None:
                pass

            def __exit__(self, *_: object) -> None:
                pass

            def wait_for(self, until: Callable[[], Any], timeout: float | None = None) -> bool:
                return sim.wait(until, timeout)

            def notify_all(self) -> None:
                pass

        return SimpleNamespace(Thread=Thread, Condition=Condition)


class Group:
    """A process group: what ``torch.distributed`` does for ``agree``. A dead member is an error to the others."""

    def __init__(self, sim: Sim, size: int) -> None:
        self.sim, self.size = sim, size
        self.members: list[Process] = []
        self._turns: dict[int, int] = {}
        self._said: dict[int, dict[int, Any]] = {}

    def exchange(self, value: Any) -> list[Any]:
        """Return every member's value, in order."""
        rank = self.members.index(self.sim.process)
        turn = self._turns[rank] = self._turns.get(rank, -1) + 1
        said = self._said.setdefault(turn, {})
        said[rank] = value
        self.sim.wait(lambda: len(said) == self.size or any(one.dead for one in self.members))
        if len(said) < self.size:
            raise RuntimeError("connection closed by peer")
        return [said[one] for one in range(self.size)]


def sim_dist() -> Any:
    """What ``agree`` sees as ``torch.distributed``."""

    def all_gather_object(values: list[Any], value: Any, group: Group) -> None:
        values[:] = group.exchange(value)

    def broadcast_object_list(box: list[Any], src: int, group: Group) -> None:
        box[:] = group.exchange(list(box))[src]

    return SimpleNamespace(
        all_gather_object=all_gather_object, broadcast_object_list=broadcast_object_list, ProcessGroup=Group
    )
