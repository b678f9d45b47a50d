"""Virtual time, and the tasks and processes that share it. Everything runs in one thread.

A task is a greenlet: a thread of a simulated process. It runs until it rests, waits, or reaches a
point where the database, the lock server or the broker could let others act. Then the engine
continues the task that is next in time. Nothing else switches, so a history depends only on the
seed.

Invariants:

- Time passes only between events, and never goes back. Each wait takes time.
- A killed process does nothing more. Each of its tasks gets ``Killed`` at once, and again at each
  use of the outside world, so that ``finally`` blocks change only the memory of the dead process.
- A suspended process continues where it was, after its suspension.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

from greenlet import greenlet

SHORTEST_WAIT = 1e-6
"""The minimum duration of a wait, in seconds.

A shorter wait could leave the time as it is, because numbers have limited precision. A loop that
waits for an instant would then never end.
"""


class Killed(BaseException):
    """The task's process is dead."""


class Process:
    """A simulated operating system process, with its own clocks and module globals."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine = engine
        self.name = name
        self.pid = next(engine.pids)
        self.alive = True
        self.suspended_at = 0.0
        """When the latest suspension began."""
        self.suspended_until = 0.0
        self.suspended_for = 0.0
        """Seconds of all suspensions of the process, including the rest of the current one."""
        self.slow_until = 0.0
        """The time until which some statements of the process wait."""
        self.slowness = 0.0
        """The maximum wait of a statement, in seconds, until ``slow_until``."""
        self.greatest_slowness = 0.0
        """The greatest ``slowness`` so far."""
        self.tasks: list[Task] = []
        self.held: list[tuple[float, float, Task, int]] = []
        """Events of its tasks that wait for the end of a suspension or a stall."""
        self.wall_offset = 0.0
        """Seconds by which the wall clock is ahead of the true time."""
        self.drift = 0.0
        """How much faster than true time the clocks run: 0.0001 is 100 ppm."""
        self.started_at = engine.now
        self.began = engine.now - 1000.0
        """The time at which the monotonic clock was 0."""
        self.module_globals: dict[str, Any] = {}
        """Values of module globals that differ between processes."""
        self.settings: dict[str, Any] = {}
        """Values of Django settings that differ between processes. Empty: those of the module."""
        self.armed: list[Any] = []
        """Faults that wait for a point of this process."""
        self.on_death: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return (self.engine.now - self.began) * (1 + self.drift)

    def start(self, name: str, work: Callable[[], None]) -> Task:
        task = Task(self, name, work)
        self.tasks.append(task)
        self.engine.wake(task, 0.0)
        return task

    def kill(self) -> None:
        """Kill the process. If it is the current one, the caller must raise ``Killed``."""
        if self.alive:
            self.alive = False
            self.engine.killed.append(self)

    def suspend(self, seconds: float) -> None:
        if self.suspended_until <= self.engine.now:
            self.suspended_at = self.engine.now
        began = max(self.suspended_until, self.engine.now)
        self.suspended_until = max(self.suspended_until, self.engine.now + seconds)
        self.suspended_for += self.suspended_until - began

    def resume(self) -> None:
        """End the suspension and the slowness of the process, and the stalls of its threads."""
        self.suspended_for -= max(self.suspended_until - self.engine.now, 0.0)
        self.suspended_until = self.slow_until = self.engine.now
        for task in self.tasks:
            task.stalled_until = self.engine.now
        self.engine.resume_held(self.held)
        self.held = []


class Task(greenlet):  # type: ignore[misc]  # greenlet has no types
    """A thread of a process."""

    def __init__(self, process: Process, name: str, work: Callable[[], None]) -> None:
        super().__init__(parent=process.engine.hub)
        self.process = process
        self.name = name
        self.work = work
        self.token = 0
        """Identifies the planned wake-up that is still valid."""
        self.timed_out = False
        self.exception: BaseException | None = None
        """Raised in the task when it continues."""
        self.joining: list[Task] = []
        self.ended = False
        self.stalled_until = 0.0

    def run(self) -> None:
        try:
            self.work()
        except Killed:
            pass
        except BaseException as error:
            self.process.engine.failed(self, error)
        finally:
            self.ended = True
            if self in self.process.tasks:
                self.process.tasks.remove(self)
            for task in self.joining:
                self.process.engine.wake(task, 0.0)


class Engine:
    """The scheduler. Module ``primitives`` asks it for the current task and the time."""

    def __init__(self, random: Random, on_error: Callable[[Task, BaseException], None]) -> None:
        self.random = random
        self.now = 0.0
        """Seconds of true time since the beginning."""
        self.hub = greenlet.getcurrent()
        self.current: Task | None = None
        self.pids = count(1000)
        self.killed: list[Process] = []
        self.events = 0
        self.failed = on_error
        self.before_switch: Callable[[Process], None] = lambda process: None
        self._heap: list[tuple[float, float, Any, int]] = []
        self._order = count()

    # --- planning ---------------------------------------------------------------------------------

    def wake(self, task: Task, after: float, *, timed_out: bool = False) -> None:
        """Let the task continue after this many seconds, unless it is woken before."""
        task.token += 1
        task.timed_out = timed_out
        heapq.heappush(self._heap, (self.now + after, next(self._order), task, task.token))

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Call ``call`` at this time, in no process."""
        heapq.heappush(self._heap, (max(when, self.now), next(self._order), call, 0))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.at(self.now + seconds, call)

    def resume_held(self, events: list[tuple[float, float, Task, int]]) -> None:
        """Repeat these events now. Those that have happened meanwhile are no longer valid."""
        for _, order, task, token in events:
            heapq.heappush(self._heap, (self.now, order, task, token))

    # --- within a task ----------------------------------------------------------------------------

    def rest(self, seconds: float | None) -> bool:
        """Let other tasks run for ``seconds``, or until this one is woken. Return whether it was.

        None: until it is woken.
        """
        task = self.current
        if task is None:  # The setup isn't simulated.
            raise RuntimeError("only a task can rest")
        if not task.process.alive:
            raise Killed
        if seconds is None:
            task.token += 1
        else:
            self.wake(task, max(seconds, SHORTEST_WAIT) if seconds > 0 else 0.0, timed_out=True)
        self.hub.switch()
        if not task.process.alive:
            raise Killed
        if task.exception is not None:
            error, task.exception = task.exception, None
            raise error
        return not task.timed_out

    def check_alive(self) -> None:
        task = self.current
        if task is not None and not task.process.alive:
            raise Killed

    # --- the loop ---------------------------------------------------------------------------------

    def run_until(self, end: float) -> None:
        """Process all events up to this time."""
        heap = self._heap
        while heap and heap[0][0] <= end:
            when, order, what, token = heapq.heappop(heap)
            if isinstance(what, Task):
                if what.token != token or what.ended or not what.process.alive:
                    continue
                held = max(what.process.suspended_until, what.stalled_until)
                if held > when:
                    order = self.random.uniform(0, order)  # The threads continue in any order.
                    what.process.held.append((when, order, what, token))
                    heapq.heappush(heap, (held, order, what, token))
                    continue
            self.now = max(self.now, when)
            self.events += 1
            if isinstance(what, Task):
                self._resume(what)
            else:
                what()
            while self.killed:
                self._end_tasks(self.killed.pop(0))
        self.now = max(self.now, end)

    def _resume(self, task: Task) -> None:
        self.current = task
        self.before_switch(task.process)
        try:
            task.switch()
        finally:
            self.current = None

    def _end_tasks(self, process: Process) -> None:
        for task in list(process.tasks):
            while not task.ended:
                self.current = task
                self.before_switch(process)
                try:
                    if task.dead or not bool(task):  # it has ended, or never began
                        task.ended = True
                    else:
                        task.throw(Killed)
                finally:
                    self.current = None
        process.tasks.clear()
        process.on_death()

    def close(self) -> None:
        """Kill every task that is left, so that none is resumed by the garbage collector."""
        for _, _, what, _ in list(self._heap):
            if isinstance(what, Task):
                what.process.kill()
        self._heap.clear()
