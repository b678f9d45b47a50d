"""Simulated threads, clocks, queues and process ids, and their installation in ``django_dcron``.

The modules of the package keep their code. Their names ``time``, ``threading``, ``random``, ``os``
and the like refer to the objects of this module while a simulation runs.
"""

from __future__ import annotations

import os as real_os
import random as real_random
import secrets as real_secrets
import sys
import threading as real_threading
import time as real_time
import uuid as real_uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from random import Random
from types import SimpleNamespace
from typing import Any

from django_dcron.utils.threads import DcronThread
from tests.simulation.engine import Engine, Killed, Process, Task
from tests.simulation.settings import FACTOR

EPOCH = 1_772_323_200.0
"""The true time at which each simulation begins: 2026-03-01 00:00 UTC, in seconds."""
MAX_DRIFT = 1e-4
"""Seconds by which a process's clocks may drift from true time in a second."""

engine: Engine = None  # type: ignore[assignment]
"""The engine of the simulation that runs."""


def process() -> Process:
    assert engine.current is not None
    return engine.current.process


def monotonic() -> float:
    return engine.now if engine.current is None else engine.current.process.monotonic()


def wall() -> float:
    offset = 0.0 if engine.current is None else engine.current.process.wall_offset
    return EPOCH + engine.now + offset


def sleep(seconds: float) -> None:
    engine.rest(seconds)


# --- locks ----------------------------------------------------------------------------------------


class Waiters:
    """Tasks that wait to be woken, in order."""

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()

    def wait(self, seconds: float | None) -> bool:
        task = engine.current
        assert task is not None
        self._tasks.append(task)
        try:
            return engine.rest(seconds)
        finally:
            if task in self._tasks:
                self._tasks.remove(task)

    def wake(self, number: int | None = None) -> None:
        for _ in range(len(self._tasks) if number is None else min(number, len(self._tasks))):
            engine.wake(self._tasks.popleft(), 0.0)


class Event:
    def __init__(self) -> None:
        self._set = False
        self._waiters = Waiters()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._waiters.wake()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._waiters.wait(timeout)
        return self._set


class Lock:
    """A reentrant lock. It stands for both ``Lock`` and ``RLock``."""

    def __init__(self) -> None:
        self._owner: object = None
        self._depth = 0
        self._waiters = Waiters()

    def __enter__(self) -> Lock:
        me = engine.current
        while self._depth and self._owner is not me:
            self._waiters.wait(None)
        self._owner = me
        self._depth += 1
        return self

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._waiters.wake(1)

    def acquire(self) -> bool:
        self.__enter__()
        return True

    def release(self) -> None:
        self.__exit__()

    @contextmanager
    def released(self) -> Iterator[None]:
        depth, self._depth = self._depth, 0
        self._waiters.wake(1)
        try:
            yield
        finally:
            while self._depth:
                self._waiters.wait(None)
            self._owner, self._depth = engine.current, depth


class Condition:
    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or Lock()
        self._waiters = Waiters()

    def __enter__(self) -> Condition:
        self._lock.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.__exit__(*error)

    def wait(self, timeout: float | None = None) -> bool:
        with self._lock.released():
            return self._waiters.wait(timeout)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        end = None if timeout is None else engine.now + timeout
        while not predicate():
            left = None if end is None else end - engine.now
            if left is not None and left <= 0:
                return False
            self.wait(left)
        return True

    def notify(self, number: int = 1) -> None:
        self._waiters.wake(number)

    def notify_all(self) -> None:
        self._waiters.wake()


class Queue:
    """Stands for ``queue.SimpleQueue``."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiters = Waiters()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._waiters.wake(1)

    def get(self, timeout: float | None = None) -> Any:
        if not self._items:
            self._waiters.wait(timeout)
        if not self._items:
            raise Empty
        return self._items.popleft()


class Thread:
    def __init__(
        self,
        target: Callable[..., Any] | None = None,
        args: Any = (),
        name: str = "thread",
        daemon: bool | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        self._call: Callable[[], Any] = lambda: target(*args, **(kwargs or {})) if target else None
        self.name = name
        self.daemon = daemon
        self._task: Task | None = None

    def start(self) -> None:
        self._task = process().start(self.name, lambda: self._call())

    @property
    def ident(self) -> int | None:
        return None if self._task is None else id(self._task)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.ended

    def join(self, timeout: float | None = None) -> None:
        if self.is_alive():
            assert self._task is not None
            assert engine.current is not None
            self._task.joining.append(engine.current)
            engine.rest(timeout)


class Timer(Thread):
    def __init__(
        self, interval: float, function: Callable[..., Any], args: Any = None, kwargs: Any = None
    ) -> None:
        super().__init__(name="timer")
        self.finished = Event()
        self._call = lambda: self._fire(interval, function, args or [], kwargs or {})

    def _fire(self, interval: float, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        if not self.finished.wait(interval):
            function(*args, **kwargs)

    def cancel(self) -> None:
        self.finished.set()


class Signals:
    """Stands for ``scheduler.signal_pipe.SignalPipe``."""

    def __init__(self) -> None:
        self._bytes: Queue = Queue()

    def __enter__(self) -> Signals:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """There is no pipe."""

    def wait(self, seconds: float | None = None) -> int | None:
        try:
            number: int = self._bytes.get(seconds)
        except Empty:
            return None
        return number or None

    def wake(self) -> None:
        self._bytes.put(0)

    def deliver(self, number: int) -> None:
        self._bytes.put(number)


class Interruption:
    """Stands for ``execution.interruption.Interruption``: raises in a task instead of a thread."""

    def __init__(self) -> None:
        self._task = engine.current
        self._armed = False
        self._used = False

    used = False
    """Always False, so that the task keeps its connection. All tasks share one, and no interruption
    happens within a statement.
    """

    @property
    def armed(self) -> bool:
        return self._armed

    def arm(self) -> None:
        self._armed = True

    def disarm(self) -> None:
        self._armed = False
        if self._task is not None and self._used:
            self._task.exception = None

    def interrupt(self, exception: type[BaseException]) -> bool:
        if not self._armed or self._used or self._task is None:
            return False
        self._used = True
        self._task.exception = exception()
        engine.wake(self._task, 0.0)
        return True


class SilentConnections:
    """Stands for ``scheduler.silent_connections``, which examines sockets."""

    def __init__(self, *arguments: object) -> None:
        """There are no sockets."""

    def watch_this_thread(self, name: str) -> None: ...

    def forget_this_thread(self) -> None: ...

    def check(self) -> None: ...


class HeartbeatRequest:
    """Stands for ``execution.heartbeat._Request``, whose queue can't be replaced otherwise."""

    def __init__(self, heartbeat: Any) -> None:
        self.heartbeat = heartbeat
        self.answer = Queue()


# --- installation ---------------------------------------------------------------------------------


class _PatchedModule:
    """A module with some names replaced."""

    def __init__(self, module: Any, **names: Any) -> None:
        self.__dict__.update(names)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _exit_process(code: int) -> None:
    process().kill()
    raise Killed


def replacements(random: Random) -> dict[int, Any]:
    """Map the id of each real object to its simulated replacement."""

    def identifier() -> real_uuid.UUID:
        return real_uuid.UUID(int=random.getrandbits(128), version=4)

    def time_ns() -> int:
        return int(wall() * 1e6) * 1000

    time = _PatchedModule(real_time, monotonic=monotonic, time=wall, time_ns=time_ns, sleep=sleep)
    threading = _PatchedModule(
        real_threading,
        Thread=Thread,
        Timer=Timer,
        Event=Event,
        Lock=Lock,
        RLock=Lock,
        Condition=Condition,
        get_ident=lambda: id(engine.current),
    )
    os = _PatchedModule(
        real_os,
        getpid=lambda: process().pid,
        urandom=lambda size: random.randbytes(size),
        _exit=_exit_process,
    )
    secrets = SimpleNamespace(token_hex=lambda size: random.randbytes(size).hex())
    pairs = [
        (real_time, time),
        (real_threading, threading),
        (real_os, os),
        (real_random, random),
        (real_secrets, secrets),
        (real_time.monotonic, monotonic),
        (real_time.time_ns, time_ns),
        (real_uuid.uuid4, identifier),
        (DcronThread, Thread),
        (SimpleQueue, Queue),
    ]
    return {id(real): simulated for real, simulated in pairs}


PARTS = (
    "agenda",
    "backoff",
    "backlog",
    "backfill_release",
    "best_effort",
    "clock",
    "current",
    "database",
    "database_outage",
    "deferred_spans",
    "executor",
    "heartbeat",
    "immediate_dispatch",
    "membership",
    "node_status",
    "pending_outcomes",
    "retry",
    "run",
    "runner",
    "start_facts",
    "time_limit",
    "heartbeat_loss",
    "unrecorded_outcome",
    "health_monitor",
    "watchdog",
)
"""Names, without their package, of the modules in which the real objects are replaced."""


INTERVALS = (
    "APPLY_CHANGES_EVERY",
    "RETRY_QUARANTINED_EVERY",
    "RESCUE_EVERY",
    "RELEASE_EVERY",
    "GROUP_FAILURES_EVERY",
    "COUNT_EVERY",
    "REPORT_EVERY",
    "LONGEST_BURST",
)
"""The constants of ``scheduler.tick`` that keep their proportion to the tick."""

PAUSES = (
    ("scheduler.pruner", "PAUSE_BETWEEN_ROUNDS", 10),
    ("scheduler.agenda", "LONGEST_PAUSE_WITHOUT_BROKER", 20),
    ("scheduler.backoff", "LONGEST_PAUSE", 12),
    ("execution.database_outage", "LONGEST_PAUSE", 12),
    ("execution.executor", "START_TIMEOUT", 12),
    ("execution.heartbeat", "RETRY_AFTER", 20),
    ("execution.heartbeat_loss", "RETRY_AFTER", 20),
    ("execution.pending_outcomes", "LONGEST_PAUSE", 20),
)
"""Pauses that must only be short compared with the leases: module, constant, and the factor by
which a simulation makes them longer.
"""


@contextmanager
def installed(random: Random) -> Iterator[None]:
    """Let the package use the simulated primitives within the block."""
    from django.utils import timezone

    from django_dcron.db import clock
    from django_dcron.db.clock import ClusterClock
    from django_dcron.execution import current, heartbeat
    from django_dcron.scheduler import health_monitor, runner, silent_connections, tick, watchdog

    instead = replacements(random)
    undo: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    for name, module in list(sys.modules.items()):
        if name.startswith("django_dcron.") and name.rpartition(".")[2] in PARTS:
            for attribute, value in list(vars(module).items()):
                if (simulated := instead.get(id(value))) is not None:
                    put(module, attribute, simulated)
    put(runner, "SignalPipe", Signals)
    put(runner, "SilentConnections", SilentConnections)
    put(current, "Interruption", Interruption)
    put(heartbeat, "_Request", HeartbeatRequest)
    check_every = watchdog.CHECK_EVERY * FACTOR
    for user in (health_monitor, watchdog, silent_connections):
        put(user, "CHECK_EVERY", check_every)
    for name in INTERVALS:
        put(tick, name, getattr(tick, name) * FACTOR)
    for path, name, factor in PAUSES:
        owner = sys.modules[f"django_dcron.{path}"]
        put(owner, name, getattr(owner, name) * factor)
    put(timezone, "now", _now)
    put(clock, "now", _now)
    put(ClusterClock.__init__, "__defaults__", (monotonic, wall))
    try:
        yield
    finally:
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)


def _now() -> Any:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(wall(), UTC)
