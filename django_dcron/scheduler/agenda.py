"""The agenda: a node's claimed runs by due time, and the thread that dispatches them on time.

Invariants:

- An attempt of a run is on the agenda at most once. Adding it again does nothing until it has been
  marked as queued.
- No run is dispatched before its ``due_at`` in cluster time. Waiting uses only the monotonic clock.
- Due runs leave the agenda in batches of at most the dispatcher's batch size. A failure therefore
  repeats at most one batch, and the thread shows activity between batches.
- The thread doesn't use the database. ``take_dispatched`` returns the dispatched runs, and the tick
  marks them as queued.
- The thread connects to the broker shortly before a run is due. If the broker doesn't answer, a run
  that falls due meanwhile loses no time: publishing it would wait for the same answer.
- While the broker is unreachable, the runs stay on the agenda and are tried again after growing
  pauses. None is dropped.
- Any other error belongs to a run. Publishing each run alone identifies it. ``take_refused``
  returns it to the tick, which ends it; the others are dispatched.
- If the broker rejects runs, because of an error or because a queue is full, only runs of the same
  kind wait. They go to a backlog, which is published in portions between all other batches. Each
  pass of the thread is therefore short.
- Losing a shard removes no run. This node dispatches the runs on time until the new leader works.
  If both nodes dispatch a run, it starts only once.
"""

from __future__ import annotations

import heapq
import logging
import random
import threading
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from itertools import count
from math import inf
from typing import cast
from uuid import UUID

from django_dcron.db.clock import Clock
from django_dcron.db.errors import in_one_line
from django_dcron.dispatch.base import Dispatcher, DispatchFailed, DueRun, SupportsEarlyConnection
from django_dcron.scheduler.backlog import (
    LONGEST_PAUSE_WITHOUT_BROKER,
    AgendaEntry,
    Kind,
    PublishBacklog,
    by_kind,
    head_of,
    kind_of,
    next_pause,
)
from django_dcron.scheduler.publishing import (
    PublishOutcome,
    RefusedDispatch,
    publish_batch,
    reason_of,
)
from django_dcron.utils.sync_points import reach_sync_point

logger = logging.getLogger("django_dcron.scheduler")

CONNECT_AHEAD = 2.0
"""How many seconds before a run is due the thread connects to the broker. It tries at most once
within this time.
"""

Key = tuple[UUID, int]


class Agenda:
    def __init__(
        self,
        dispatcher: Dispatcher,
        clock: Clock,
        on_dispatched: Callable[[], None] = lambda: None,
        on_activity: Callable[[float | None], None] = lambda rest: None,
    ):
        """Create an empty agenda.

        ``on_dispatched`` is called after a batch if no further run is due. ``on_activity`` is
        called before each batch with 0, and before each rest with its maximum duration in seconds,
        or None if the thread rests until it is woken.
        """
        self._dispatcher = dispatcher
        self._clock = clock
        self._on_dispatched = on_dispatched
        self._on_activity = on_activity
        self._heap: list[AgendaEntry] = []
        self._backlogs: dict[Kind, PublishBacklog] = {}
        self._publishing_due_at: datetime | None = None
        """The earliest due time of the batch that is being published, which is on no heap."""
        self._known: set[Key] = set()
        self._dispatched: list[DueRun] = []
        self._refused: list[RefusedDispatch] = []
        self._order = count()
        self._changed = threading.Condition()
        self._stopped = False
        self._connect_from = -inf if isinstance(dispatcher, SupportsEarlyConnection) else inf
        """The earliest monotonic time of the next try to connect ahead. While the broker is
        unreachable, only ``publish`` tries.
        """
        self.broker_unreachable = False
        self.broker_error = ""
        """Why the broker accepts no messages, in one line. Empty if it accepts them."""

    def __len__(self) -> int:
        return len(self._heap) + sum(map(len, list(self._backlogs.values())))

    def lag(self) -> timedelta:
        """Return the lag of the oldest run awaiting dispatch; zero if none is due.

        Takes no lock.
        """
        due_times = [
            head_of(self._heap),
            self._publishing_due_at,
            *(backlog.head for backlog in list(self._backlogs.values())),
        ]
        known = [due_at for due_at in due_times if due_at is not None]
        return max(self._clock.now() - min(known), timedelta()) if known else timedelta()

    def add(self, runs: Iterable[DueRun]) -> list[RefusedDispatch]:
        """Add the runs that are not on the agenda yet, and build their messages ahead of time.

        Return the runs that can't be dispatched.
        """
        refused = []
        for run in runs:
            if run.key in self._known:
                continue
            try:
                message = self._dispatcher.prepare(run)
            except Exception as error:
                # The error may come from the project's router. It must not stop the other runs.
                refused.append(RefusedDispatch(run, reason_of(run, error)))
                continue
            entry = AgendaEntry(run.due_at, next(self._order), run, message)
            with self._changed:
                self._known.add(run.key)
                heapq.heappush(self._heap, entry)
                if self._heap[0] is entry:
                    self._changed.notify()
        return refused

    @property
    def is_behind(self) -> bool:
        """Whether due runs await dispatch while the broker is reachable. Backlogs don't count."""
        with self._changed:
            return (
                not self.broker_unreachable
                and bool(self._heap)
                and self._heap[0].due_at <= self._clock.now()
            )

    def knows(self, key: Key) -> bool:
        """Return whether the run is on the agenda, or dispatched but not yet marked."""
        return key in self._known

    def take_dispatched(self) -> list[DueRun]:
        """Return the runs dispatched since the last call.

        The caller marks them as queued or gives them back.
        """
        with self._changed:
            dispatched, self._dispatched = self._dispatched, []
            return dispatched

    def take_refused(self) -> list[RefusedDispatch]:
        """Return the runs refused since the last call, for the caller to end.

        The agenda forgets them, so a run that isn't ended is adopted again.
        """
        with self._changed:
            refused, self._refused = self._refused, []
            self._known.difference_update(refusal.run.key for refusal in refused)
            return refused

    def forget(self, runs: Iterable[DueRun]) -> None:
        """Forget these runs, because the database has marked them as queued."""
        with self._changed:
            self._known.difference_update(run.key for run in runs)

    def restore_dispatched(self, runs: list[DueRun]) -> None:
        """Restore dispatched runs that couldn't be marked.

        The next ``take_dispatched`` returns them again.
        """
        with self._changed:
            self._dispatched[:0] = runs

    def run(self) -> None:
        """Dispatch runs as they fall due, until ``stop``. This is the body of the thread."""
        pause = 0.0
        while self._wait(pause):
            self._on_activity(0.0)
            pause = self._publish_due(pause)

    def follow_clock(self) -> None:
        """Make the thread read the clock again: cluster time may have jumped while it rests.

        For example, the machine and its monotonic clock were suspended.
        """
        with self._changed:
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def publish_due(self) -> None:
        """Dispatch everything that is due, in the calling thread.

        Stops if the broker is unreachable.
        """
        while (seconds := self._seconds_to_next()) is not None and seconds <= 0:
            if self._publish_due(0.0):
                return

    def _wait(self, pause: float) -> bool:
        """Sleep for up to ``pause`` seconds, then until a run is due. Return False once stopped."""
        if pause:  # With jitter, so that the nodes don't all retry at the same time.
            with self._changed:
                self._on_activity(pause)
                self._changed.wait_for(lambda: self._stopped, pause * random.uniform(0.5, 1))  # noqa: S311 (spreads)
        while (head := self._wait_for_head()) is not None:
            self._connect_ahead(head)
        return not self._stopped

    def _wait_for_head(self) -> AgendaEntry | None:
        """Sleep until a run is due, or until the node has to connect for the first run.

        Return the first run if the node has to connect.
        """
        with self._changed:
            while not self._stopped:
                seconds = self._seconds_to_next()
                if seconds is not None and seconds <= 0:
                    break
                if self._heap and seconds is not None and not self.broker_unreachable:
                    to_connect = max(
                        seconds - CONNECT_AHEAD, self._connect_from - self._clock.monotonic()
                    )
                    if to_connect <= 0:
                        return self._heap[0]
                    seconds = min(seconds, to_connect)
                self._on_activity(seconds)
                self._changed.wait(seconds)
            return None

    def _connect_ahead(self, head: AgendaEntry) -> None:
        self._on_activity(0.0)
        self._connect_from = self._clock.monotonic() + CONNECT_AHEAD
        cast(SupportsEarlyConnection, self._dispatcher).connect_ahead(head.message)

    def _seconds_to_next(self) -> float | None:
        times = [backlog.next_at for backlog in self._backlogs.values() if len(backlog)]
        if self._heap:
            times.append(self._heap[0].due_at)
        return (min(times) - self._clock.now()) / timedelta(seconds=1) if times else None

    def _take_due(self) -> list[AgendaEntry]:
        """Remove the next batch of due runs from the heap. The runs stay known."""
        with self._changed:
            now = self._clock.now()
            batch: list[AgendaEntry] = []
            limit = self._dispatcher.batch_size
            while self._heap and self._heap[0].due_at <= now and len(batch) < limit:
                entry = heapq.heappop(self._heap)
                backlog = self._backlogs.get(kind_of(entry)) if self._backlogs else None
                if backlog is None:
                    batch.append(entry)
                else:
                    backlog.add([entry])
            return batch

    def _take_portion(self) -> list[AgendaEntry]:
        """Take the next portion of the backlog that has waited longest."""
        with self._changed:
            now = self._clock.now()
            ready = [
                backlog
                for backlog in self._backlogs.values()
                if len(backlog) and backlog.next_at <= now
            ]
            if not ready:
                return []
            return min(ready, key=lambda backlog: backlog.next_at).take(self._dispatcher.batch_size)

    def _publish_due(self, pause: float) -> float:
        """Dispatch one batch, and one portion of a backlog.

        Return the seconds to pause before the next try; 0 if the broker is reachable.
        """
        for take in (self._take_due, self._take_portion):
            batch = take()
            if not batch:
                continue  # Nothing is due, or a draining thread was faster.
            self._publishing_due_at = batch[0].due_at
            reach_sync_point("publish.begun")
            try:
                outcome = publish_batch(batch, self._dispatcher)
            except DispatchFailed as error:
                with self._changed:
                    for entry in batch:
                        heapq.heappush(self._heap, entry)
                self._report_broker(unreachable=True, error=error, waiting=len(batch))
                return next_pause(pause, LONGEST_PAUSE_WITHOUT_BROKER)
            finally:
                self._publishing_due_at = None
            reach_sync_point("publish.done")
            self._report_broker(unreachable=False)
            self._record_outcome(batch, outcome)
        return 0.0

    def _record_outcome(self, batch: list[AgendaEntry], outcome: PublishOutcome) -> None:
        with self._changed:
            self._refused.extend(outcome.refused)
            self._dispatched.extend(outcome.runs)
            if outcome.left or self._backlogs:
                self._update_backlogs(batch, outcome)
            more_is_due = bool(self._heap) and self._heap[0].due_at <= self._clock.now()
        if not more_is_due:  # In a burst, dispatch comes before marking.
            self._on_dispatched()

    def _update_backlogs(self, batch: list[AgendaEntry], outcome: PublishOutcome) -> None:
        published, left = by_kind(outcome.published), by_kind(outcome.left)
        now = self._clock.now()
        for kind in by_kind(batch):
            number = len(published.get(kind, ()))
            if kind in left:
                backlog = self._backlogs.setdefault(kind, PublishBacklog(now))
                if not outcome.rejection:
                    backlog.failed(left[kind], now)
                    continue
                if not backlog.was_rejected:
                    waiting = len(left[kind]) + len(backlog)
                    _report_rejection(kind, waiting, outcome.rejection)
                backlog.rejected(
                    left[kind], now, accepted_others=number > 0, by_error=outcome.by_error
                )
            elif kind in self._backlogs:
                backlog = self._backlogs[kind]
                backlog.published(number, now)
                if not len(backlog):
                    del self._backlogs[kind]

    def _report_broker(
        self, *, unreachable: bool, error: Exception | None = None, waiting: int = 0
    ) -> None:
        """Log one line when the broker becomes unreachable, and one when it is back."""
        self.broker_error = in_one_line(error) if error else ""
        if unreachable == self.broker_unreachable:
            return
        self.broker_unreachable = unreachable
        if unreachable:
            logger.error(
                "broker unreachable: broker=%s waiting=%d error=%s",
                self._dispatcher.address,
                waiting,
                error,
                extra={"event": "broker_unreachable", "agenda": waiting},
            )
        else:
            logger.info(
                "broker reachable again: broker=%s",
                self._dispatcher.address,
                extra={"event": "broker_back"},
            )


def _report_rejection(kind: Kind, waiting: int, text: str) -> None:
    target, queue = kind
    logger.warning(
        "dispatch delayed: target=%s queue=%s waiting=%d error=%s",
        target,
        queue or "-",
        waiting,
        text,
        extra={"event": "dispatch_delayed", "agenda": waiting},
    )
