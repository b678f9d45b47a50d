"""The simulated nodes and workers: supervised processes that run the package's real code."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from typing import Any

from django_dcron.exceptions import UnknownRun
from django_dcron.execution import executor, heartbeat
from django_dcron.execution.termination import record_killed_attempt
from django_dcron.policies.lifecycle import Outcome
from django_dcron.scheduler.runner import Runner
from tests.simulation import settings
from tests.simulation.engine import Engine, Killed, Process, Task
from tests.simulation.primitives import MAX_DRIFT
from tests.simulation.services import Broker, Key, Message

CHILDREN = 4
THIS_RELEASE = {
    name: getattr(settings, name)
    for name in (
        *("DCRON_SHARDS", "DCRON_TICK", "DCRON_LOOK_AHEAD"),
        "DCRON_STOP_WITHOUT_HEARTBEAT_AFTER",
    )
}
OTHER_RELEASE = THIS_RELEASE | {
    "DCRON_SHARDS": settings.DCRON_SHARDS - 1,
    "DCRON_TICK": settings.DCRON_TICK * 1.5,
    "DCRON_LOOK_AHEAD": settings.DCRON_LOOK_AHEAD * 2,
}
"""The defaults of another release. Nodes with different numbers of shards don't share the jobs."""

PERSISTENT = THIS_RELEASE | {"DCRON_STOP_WITHOUT_HEARTBEAT_AFTER": None}
PERSISTENT_WORKER = "worker-2"
"""A worker that lets runs continue although it can't write their heartbeats, and its settings."""


class Node:
    """A ``runcron`` process, which a supervisor starts again whenever it ends."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        lock: Callable[[], Any],
        broker: Broker,
        namespace: str = "",
    ) -> None:
        self.engine = engine
        self.name = name
        self.namespace = namespace
        """The only namespace that the node serves; empty for all."""
        self.starts = 0
        self.restart_after = 10.0
        self.wall_offset = 0.0
        self.has_other_release = False
        """Whether the node runs another release from its next start on."""
        self._lock = lock
        self._broker = broker
        self.process = self._new_process()
        self.runner: Runner | None = None

    def _new_process(self) -> Process:
        process = Process(self.engine, self.name)
        process.drift = self.engine.random.uniform(-MAX_DRIFT, MAX_DRIFT)
        process.wall_offset = self.wall_offset
        process.settings = OTHER_RELEASE if self.has_other_release else THIS_RELEASE
        process.on_death = self._died
        return process

    def start(self) -> None:
        self.starts += 1
        self.process = self._new_process()
        self.process.start("main", self._main)

    def _main(self) -> None:
        process = self.process
        try:
            self.runner = Runner(
                name=self.name,
                namespace=self.namespace,
                lock=self._lock(),
                dispatcher=self._broker.dispatcher(),
            )
            self.runner.run()
        except Exception as error:
            self._broker.log(f"{self.name} exits: {type(error).__name__}: {error}")
        process.kill()

    def _died(self) -> None:
        self.runner = None
        self.engine.after(self.restart_after, self.start)

    def drain(self) -> None:
        if self.runner is not None and self.process.alive:
            self.runner._signals.deliver(signal.SIGTERM)  # type: ignore[attr-defined]


class Worker:
    """A Celery worker: a main process, and pool processes that execute one message each."""

    def __init__(self, engine: Engine, name: str, broker: Broker) -> None:
        self.engine = engine
        self.name = name
        self.broker = broker
        self.restart_after = 10.0
        self.redeliver_after = 1.0
        """Seconds after which the broker delivers the messages of a dead worker again."""
        self.is_persistent = name == PERSISTENT_WORKER
        self.revoked: set[Key] = set()
        self.main = Process(engine, name)
        self.children: list[Child] = []
        self.waiting_faults: list[Callable[[Process], None]] = []
        """Faults that wait for a pool process which executes a run."""

    def start(self) -> None:
        self.main = Process(self.engine, self.name)
        self.main.on_death = self._died
        self.revoked = set()
        self.children = [Child(self) for _ in range(CHILDREN)]
        self.broker.on_message()

    @property
    def is_up(self) -> bool:
        return self.main.alive and self.engine.now >= self.main.suspended_until

    @property
    def is_connected(self) -> bool:
        until = self.broker.unreachable_for.get(self.name, 0.0)
        return self.engine.now >= max(self.broker.unreachable_until, until)

    def idle(self) -> list[Child]:
        if not (self.is_up and self.is_connected):
            return []
        return [child for child in self.children if child.message is None and child.process.alive]

    def kill(self) -> None:
        """Kill the main process and all pool processes."""
        self.main.kill()
        for child in self.children:
            child.process.kill()

    def suspend(self, seconds: float) -> None:
        self.main.suspend(seconds)
        for child in self.children:
            child.process.suspend(seconds)
        self.engine.after(seconds + 0.001, self.broker.on_message)

    def _died(self) -> None:
        for child in self.children:
            if child.message is not None:
                self.broker.put(child.message, after=self.redeliver_after)
                child.message = None
        self.children = []
        self.engine.after(self.restart_after, self.start)

    def revoke(self, key: Key, worker: str) -> None:
        if not self.main.alive:
            return
        self.revoked.add(key)
        for child in self.children:
            if child.name == worker and child.process.alive and child.process.tasks:
                child.process.start("signal", heartbeat.check_cancellations)


class Child:
    """A pool process."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.engine = worker.engine
        self.message: Message | None = None
        self.process = self._new_process()

    @property
    def name(self) -> str:
        """The name that the attempt's row shows."""
        return f"{self.worker.name}/{self.process.pid}"

    def _new_process(self) -> Process:
        process = Process(self.engine, self.worker.name)
        process.settings = PERSISTENT if self.worker.is_persistent else THIS_RELEASE
        process.on_death = self._died
        return process

    def execute(self, message: Message) -> None:
        self.message = message
        self.process.start("execute", self._execute)
        for fault in self.worker.waiting_faults:
            within = self.engine.random.uniform(0.0, 60.0)
            self.engine.after(within, partial(self._happen, fault, message))

    def _happen(self, fault: Callable[[Process], None], message: Message) -> None:
        """Let the fault happen if it still waits and the message's run is still executed."""
        is_executing = self.message is message and self.process.alive
        if is_executing and fault in self.worker.waiting_faults:
            self.worker.waiting_faults.remove(fault)
            fault(self.process)

    def _execute(self) -> None:
        message = self.message
        assert message is not None
        if message.key not in self.worker.revoked:
            try:
                executor.execute(
                    message.run_id,
                    message.attempt,
                    worker=self.name,
                    end_process=self._end_process,
                )
            except UnknownRun:
                pass  # The node uses the same database, so the message is dropped.
            except Exception as error:
                text = f"{self.name} fails: {type(error).__name__}: {error}"
                self.worker.broker.log(text)
        self.message = None
        self.engine.after(0.001, self.worker.broker.on_message)

    def _end_process(self) -> None:
        self.process.kill()
        raise Killed

    def _died(self) -> None:
        """The main process sees that a pool process has died."""
        worker, message, name = self.worker, self.message, self.name
        if not worker.main.alive:
            return
        self.message = None
        self.process = self._new_process()
        if message is not None:
            text = "worker process died: signal 9 (SIGKILL)"
            worker.main.start(
                "lost",
                lambda: record_killed_attempt(
                    message.run_id, message.attempt, Outcome.LOST, text, worker=name
                ),
            )
        self.engine.after(0.5, worker.broker.on_message)


def deliver(engine: Engine, broker: Broker, workers: list[Worker]) -> None:
    """Give the messages of the queue to idle pool processes."""
    while broker.queue:
        idle = [child for worker in workers for child in worker.idle()]
        if not idle:
            return
        engine.random.choice(idle).execute(broker.take())


__all__ = ["Child", "Node", "Task", "Worker", "deliver"]
