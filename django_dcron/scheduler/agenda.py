"""The agenda: a node's claimed runs in the order of their due time, and the thread that hands them over on the dot.

Invariants:

- An attempt of a run is on the agenda at most once; adding it again is a no-op until it has been marked as queued.
- Nothing is handed over before its ``due_at`` by the cluster clock; waiting uses the monotonic clock alone.
- What is due stays on the agenda until its own batch, of the dispatcher's size: so a failure repeats little, and the thread
  shows between any two that it is alive.
- The thread needs no database. What it has handed over it leaves in ``delivered`` for the tick to mark as queued.
- While the broker is away, the runs stay on the agenda and are tried again with a growing pause; none is dropped.
- An error that is not the broker's absence belongs to a run. Which one, each tells alone; it is left in ``refused`` for the
  tick to end, and the others are handed over.
- What the broker does not take, for an error or for want of room, keeps back only runs of its kind: these go through a
  backlog, in portions between the batches of all others. So each pass of the thread is short, whatever is wrong.
- A shard that was lost takes nothing off: until its new leader is at work these runs are handed over on time from here,
  and whatever both hand over starts once.
"""

from __future__ import annotations

import heapq
import logging
import random
import threading
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from itertools import count
from uuid import UUID

from django_dcron.dispatch.base import Dispatcher, DispatchFailed, DueRun
from django_dcron.domain.clock import Clock
from django_dcron.domain.counts_in_words import number_of
from django_dcron.scheduler.backlog import Backlog, Entry, Kind, by_kind, head_of, kind_of, longer
from django_dcron.scheduler.hand_over import Outcome, hand_over, reason_of
from django_dcron.sync_points import reach

logger = logging.getLogger("django_dcron.scheduler")

Key = tuple[UUID, int]


class Agenda:
    def __init__(
        self,
        dispatcher: Dispatcher,
        clock: Clock,
        on_delivered: Callable[[], None] = lambda: None,
        alive: Callable[[float | None], None] = lambda rest: None,
    ):
        """``alive``: called by the thread before each batch, and with the seconds it is to rest at the most."""
        self._dispatcher = dispatcher
        self._clock = clock
        self._on_delivered = on_delivered
        self._alive = alive
        self._heap: list[Entry] = []
        self._backlogs: dict[Kind, Backlog] = {}
        self._in_hand: datetime | None = None
        """The earliest due time of the batch that is being handed over: it is on no heap."""
        self._known: set[Key] = set()
        self._delivered: list[DueRun] = []
        self._refused: list[tuple[DueRun, str]] = []
        self._order = count()
        self._changed = threading.Condition()
        self._stopped = False
        self.broker_away = False

    def __len__(self) -> int:
        return len(self._heap) + sum(map(len, list(self._backlogs.values())))

    def lag(self) -> timedelta:
        """How late that is which has waited longest for the broker; zero if nothing is due. Takes no lock."""
        heads = [
            head_of(self._heap),
            self._in_hand,
            *(backlog.head for backlog in list(self._backlogs.values())),
        ]
        waiting = [head for head in heads if head is not None]
        return max(self._clock.now() - min(waiting), timedelta()) if waiting else timedelta()

    def add(self, runs: Iterable[DueRun]) -> list[tuple[DueRun, str]]:
        """Put those on the agenda that are not known yet. Their messages are built here, ahead of time.

        Returns the runs that can never be handed over, each with the reason.
        """
        refused = []
        for run in runs:
            if run.key in self._known:
                continue
            try:
                entry = (run.due_at, next(self._order), run, self._dispatcher.prepare(run))
            except Exception as error:
                # Also of a router of the project's: the other runs must not wait for it.
                refused.append((run, reason_of(run, error)))
                continue
            with self._changed:
                self._known.add(run.key)
                heapq.heappush(self._heap, entry)
                if self._heap[0] is entry:
                    self._changed.notify()
        return refused

    @property
    def is_behind(self) -> bool:
        """Whether runs are due that are not handed over yet, and the broker is there to take them."""
        with self._changed:
            return not self.broker_away and bool(self._heap) and self._heap[0][0] <= self._clock.now()

    def knows(self, key: Key) -> bool:
        """Whether it is on the agenda, or was handed over and not marked yet."""
        return key in self._known

    def take_delivered(self) -> list[DueRun]:
        """What was handed over since the last call. Whoever takes it must mark it as queued, or give it back."""
        with self._changed:
            delivered, self._delivered = self._delivered, []
            return delivered

    def take_refused(self) -> list[tuple[DueRun, str]]:
        """What was refused since the last call, with the reason: to be ended. Forgotten here, so what is not is adopted again."""
        with self._changed:
            refused, self._refused = self._refused, []
            self._known.difference_update(run.key for run, _ in refused)
            return refused

    def marked(self, runs: Iterable[DueRun]) -> None:
        """These are queued in the database: the agenda may forget them."""
        with self._changed:
            self._known.difference_update(run.key for run in runs)

    def give_back(self, runs: list[DueRun]) -> None:
        """These could not be marked; they will be taken again."""
        with self._changed:
            self._delivered[:0] = runs

    def run(self) -> None:
        """The thread: until ``stop``, hand over whatever falls due."""
        pause = 0.0
        while self._wait(pause):
            self._alive(0.0)
            pause = self._hand_over_due(pause)

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def hand_over_due(self) -> None:
        """Hand over all that is due now, in the calling thread; ends if the broker is away."""
        while (seconds := self._seconds_to_next()) is not None and seconds <= 0:
            if self._hand_over_due(0.0):
                return

    def _wait(self, pause: float) -> bool:
        """Sleep until something is due, or for ``pause`` seconds at least; False once stopped."""
        with self._changed:
            if pause:  # somewhat shorter by chance, that not all nodes come at once
                self._alive(pause)
                self._changed.wait_for(lambda: self._stopped, pause * random.uniform(0.5, 1))  # noqa: S311 (spreads)
            while not self._stopped:
                seconds = self._seconds_to_next()
                if seconds is not None and seconds <= 0:
                    return True
                self._alive(seconds)
                self._changed.wait(seconds)
            return False

    def _seconds_to_next(self) -> float | None:
        times = [backlog.next_at for backlog in self._backlogs.values() if len(backlog)]
        if self._heap:
            times.append(self._heap[0][0])
        return (min(times) - self._clock.now()) / timedelta(seconds=1) if times else None

    def _due(self) -> list[Entry]:
        """Take the next batch of what is due off the heap. (It stays known.)"""
        with self._changed:
            now = self._clock.now()
            batch: list[Entry] = []
            while self._heap and self._heap[0][0] <= now and len(batch) < self._dispatcher.batch_size:
                entry = heapq.heappop(self._heap)
                backlog = self._backlogs.get(kind_of(entry)) if self._backlogs else None
                if backlog is None:
                    batch.append(entry)
                else:
                    backlog.add([entry])
            return batch

    def _portion(self) -> list[Entry]:
        """Take a portion of the backlog whose turn it is."""
        with self._changed:
            now = self._clock.now()
            ready = [
                backlog for backlog in self._backlogs.values() if len(backlog) and backlog.next_at <= now
            ]
            if not ready:
                return []
            return min(ready, key=lambda backlog: backlog.next_at).take(self._dispatcher.batch_size)

    def _hand_over_due(self, pause: float) -> float:
        """Hand over one batch, and a portion of one backlog; returns how long to pause before the next try, 0 if the
        broker is there."""
        for take in (self._due, self._portion):
            batch = take()
            if not batch:
                continue  # or another thread, which drains, was first
            self._in_hand = batch[0][0]
            reach("publish.begun")
            try:
                outcome = hand_over(batch, self._dispatcher)
            except DispatchFailed as error:
                with self._changed:
                    for entry in batch:
                        heapq.heappush(self._heap, entry)
                self._report_broker(away=True, error=error, waiting=len(batch))
                return longer(pause)
            finally:
                self._in_hand = None
            reach("publish.done")
            self._report_broker(away=False)
            self._settle(batch, outcome)
        return 0.0

    def _settle(self, batch: list[Entry], outcome: Outcome) -> None:
        with self._changed:
            self._refused.extend(outcome.refused)
            self._delivered.extend(run for _, _, run, _ in outcome.taken)
            if outcome.left or self._backlogs:
                self._settle_backlogs(batch, outcome)
            more_is_due = bool(self._heap) and self._heap[0][0] <= self._clock.now()
        if not more_is_due:  # marking takes time that, in a burst, what is still due needs more
            self._on_delivered()

    def _settle_backlogs(self, batch: list[Entry], outcome: Outcome) -> None:
        taken, left, now = by_kind(outcome.taken), by_kind(outcome.left), self._clock.now()
        for kind in by_kind(batch):
            number = len(taken.get(kind, ()))
            if kind in left:
                backlog = self._backlogs.setdefault(kind, Backlog(now))
                if not outcome.no_room:
                    backlog.raised(left[kind], now)
                    continue
                if not backlog.full:
                    _report_no_room(kind, len(left[kind]), outcome.no_room)
                backlog.had_no_room(left[kind], now, for_any=number > 0, by_error=outcome.by_error)
            elif kind in self._backlogs:
                backlog = self._backlogs[kind]
                backlog.went_through(number, now)
                if not len(backlog):
                    del self._backlogs[kind]

    def _report_broker(self, *, away: bool, error: Exception | None = None, waiting: int = 0) -> None:
        """One line when the broker goes, one when it is back."""
        if away == self.broker_away:
            return
        self.broker_away = away
        if away:
            logger.error(
                "the broker %s does not take runs, %s on the agenda: %s",
                self._dispatcher.address,
                number_of(waiting, "waits", "wait"),
                error,
                extra={"event": "broker_away", "agenda": waiting},
            )
        else:
            logger.info("the broker %s is back", self._dispatcher.address, extra={"event": "broker_back"})


def _report_no_room(kind: Kind, waiting: int, said: str) -> None:
    target, queue = kind
    of_kind = f"of {target} in queue {queue}" if queue else f"of {target}"
    logger.warning(
        "%s on the agenda, the others are handed over: %s",
        number_of(waiting, f"run {of_kind} waits", f"runs {of_kind} wait"),
        said,
        extra={"event": "no_room", "agenda": waiting},
    )
