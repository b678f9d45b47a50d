"""The worker probe: ask the workers for their state, and repeat dropped dispatches.

A *foreign* worker uses a different database than this node. It returns messages to the queue a
limited number of times.

Invariants:

- The thread asks the workers every ``ASK_IDLE_EVERY`` seconds. It asks every ``ASK_EVERY`` seconds
  while a queued run of this node has waited for longer than a quarter of
  ``DCRON_REDELIVER_AFTER``.
- ``Node.workers`` stops naming a fault soon after the fault is over.
- ``Node.workers`` lists only unknown runs that exist in this node's database. All others were
  deleted.
- A run is dispatched again only if a worker dropped its latest message, and another worker may take
  the run. The run still starts only once.
- No other thread waits for this thread, and no error ends it. It sends no request while the broker
  is unreachable.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from django.db import connections

from django_dcron.conf import settings
from django_dcron.db.clock import Clock
from django_dcron.db.errors import in_one_line
from django_dcron.db.routing import alias_for
from django_dcron.dispatch.base import DispatchFailed, SupportsWorkerRequests, WorkerReply
from django_dcron.dispatch.queues import queue_name
from django_dcron.models import Node
from django_dcron.runs import deliveries, transitions

logger = logging.getLogger("django_dcron.scheduler")

CHECK_EVERY = 2.0
"""Seconds between two checks for waiting runs."""
ASK_EVERY = 5.0
"""Seconds between two requests to the workers while runs wait."""
ASK_IDLE_EVERY = 60.0
"""Seconds between two requests while no run waits. If another worker executes the runs, a foreign
worker merely delays them.
"""
LONGEST_REQUEST = 30.0
"""The maximum duration of a request in seconds, with a slow broker."""
WAITING_AT_ONCE = 500
MARKED_WITHIN = timedelta(seconds=2)
"""Maximum time from sending a run to marking it as queued. Within this time, a worker may drop the
run before the node has marked it.
"""


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """A queued run that no worker has started."""

    run_id: UUID
    attempt: int
    queued_at: datetime
    deliveries: int
    queue: str = ""
    """The queue of the run's job. Empty: unknown."""


class Leader(Protocol):
    """The part of the node's membership that the probe uses."""

    id: str
    name: str

    @property
    def shards(self) -> Collection[int]: ...


class ActivityRecorder(Protocol):
    """The part of the watchdog that the probe uses."""

    def record_activity(self, thread: str, rest: float = 0.0) -> None: ...


def foreign_workers(replies: Iterable[WorkerReply], known_here: Collection[UUID]) -> set[str]:
    """Return the names of the workers that don't know a run of this database.

    ``known_here``: the reported runs that exist in this database.
    """
    return {
        reply.name
        for reply in replies
        if any(unknown.run_id in known_here for unknown in reply.unknown_runs)
    }


def dropped_runs(
    replies: Sequence[WorkerReply],
    waiting: Iterable[WaitingRun],
    now: datetime,
    foreign: Collection[str],
) -> list[WaitingRun]:
    """Return the waiting runs whose latest message a foreign worker dropped.

    Only runs that another worker may take from the same queue are returned. A run of an unknown
    queue may be in any queue of a foreign worker.
    """
    good = [reply for reply in replies if reply.executes and reply.name not in foreign]
    served_queues = {queue for reply in good for queue in reply.queues}
    queues = {queue for reply in replies if reply.name in foreign for queue in reply.queues}
    dropped_at: dict[UUID, datetime] = {}
    for reply in replies:
        if reply.name in foreign:
            for unknown in reply.unknown_runs:
                if unknown.dropped:
                    at = now - timedelta(seconds=unknown.age)
                    dropped_at[unknown.run_id] = max(at, dropped_at.get(unknown.run_id, at))
    return [
        run
        for run in waiting
        if run.run_id in dropped_at
        and dropped_at[run.run_id] >= run.queued_at - MARKED_WITHIN
        and served_queues & ({run.queue} if run.queue else queues)
    ]


def replies_as_json(
    replies: Iterable[WorkerReply], known_here: Collection[UUID], at: datetime
) -> dict[str, Any]:
    """Return the value of ``Node.workers``."""
    return {
        "at": at.isoformat(),
        "replies": [
            {
                "name": reply.name,
                "queues": list(reply.queues),
                "executes": reply.executes,
                "unknown_runs": [
                    str(unknown.run_id)
                    for unknown in reply.unknown_runs
                    if unknown.run_id in known_here
                ],
            }
            for reply in replies
        ],
    }


class WorkerProbe:
    def __init__(self, leader: Leader, clock: Clock, dispatcher: SupportsWorkerRequests):
        self._leader = leader
        self._clock = clock
        self._dispatcher = dispatcher
        self._probed_at = clock.monotonic()
        self._failed = False
        self._foreign: set[str] = set()

    def run(self, stopping: threading.Event, watchdog: ActivityRecorder, name: str) -> None:
        """Ask until ``stopping`` is set. This is the body of the thread ``name``."""
        while True:
            watchdog.record_activity(name, rest=CHECK_EVERY)
            if stopping.wait(CHECK_EVERY):
                return
            watchdog.record_activity(name, rest=LONGEST_REQUEST)
            try:
                if self.check():
                    self._failed = False
            except Exception as error:
                # The database or the broker is unreachable, which other threads report. Or it is a
                # bug.
                connections.close_all()
                if not self._failed:
                    text = "worker probe failed: node=%s error=%s"
                    extra = {"event": "workers_not_asked", "node": self._leader.name}
                    level = logging.INFO if isinstance(error, DispatchFailed) else logging.WARNING
                    logger.log(level, text, self._leader.name, in_one_line(error), extra=extra)
                self._failed = True

    def check(self) -> bool:
        """Ask the workers if it is time. Return whether they were asked."""
        shards = self._leader.shards
        if not shards:
            return False
        passed = self._clock.monotonic() - self._probed_at
        if passed < ASK_EVERY:
            return False
        waiting = self._waiting(shards)
        if not waiting and passed < ASK_IDLE_EVERY:
            return False
        self._probed_at = self._clock.monotonic()
        replies = self._dispatcher.ask_workers()
        if replies is not None:
            self._process(replies, waiting)
        return True

    def _waiting(self, shards: Collection[int]) -> list[WaitingRun]:
        """Return the queued runs that were due more than a quarter of the redelivery time ago.

        The filter uses ``due_at``, which is indexed and never later than ``queued_at``.
        """
        since = self._clock.now() - settings.REDELIVER_AFTER / 4
        queued = (
            transitions.runs().in_shards(shards, settings.SHARDS).queued().filter(due_at__lt=since)
        )
        columns = ("pk", "attempt", "queued_at", "deliveries", "job__target", "job__queue")
        rows = list(queued.order_by("due_at").values_list(*columns)[:WAITING_AT_ONCE])
        queues = {names: queue_name(*names) for names in {row[-2:] for row in rows}}
        return [
            WaitingRun(run_id, attempt, queued_at, deliveries, queues[target, queue])
            for run_id, attempt, queued_at, deliveries, target, queue in rows
            if queued_at is not None
        ]

    def _process(self, replies: Sequence[WorkerReply], waiting: Sequence[WaitingRun]) -> None:
        now = self._clock.now()
        reported = {unknown.run_id for reply in replies for unknown in reply.unknown_runs}
        known_here = set(transitions.runs().filter(pk__in=reported).values_list("pk", flat=True))
        foreign = foreign_workers(replies, known_here)
        document = replies_as_json(replies, known_here, now)
        Node.objects.using(alias_for(Node)).filter(pk=self._leader.id).update(workers=document)
        self._report(foreign)
        redelivered = [
            run
            for run in dropped_runs(replies, waiting, now, foreign)
            if deliveries.redeliver_dropped(run.run_id, run.attempt, run.queued_at, run.deliveries)
        ]
        if redelivered:
            text = (
                "runs redelivered: node=%s runs=%d first=%s reason=dropped by a worker of another "
                "database"
            )
            extra = {
                "event": "redelivered",
                "run": str(redelivered[0].run_id),
                "runs": len(redelivered),
            }
            logger.warning(
                text, self._leader.name, len(redelivered), redelivered[0].run_id, extra=extra
            )

    def _report(self, foreign: set[str]) -> None:
        """Log one line when a foreign worker appears."""
        for worker in sorted(foreign - self._foreign):
            logger.warning(
                "foreign worker: worker=%s node=%s; it uses another database but takes this node's "
                "runs. Connect it to this database, or to another broker or queue",
                worker,
                self._leader.name,
                extra={"event": "foreign_worker", "node": self._leader.name, "worker": worker},
            )
        self._foreign = foreign
