"""Backlogs: runs that are published separately, because the broker rejected one of their kind.

A kind is a target and a queue, which determine the route of a message.

Invariants:

- While a kind has a backlog, all its runs go there. Other runs therefore wait for at most one
  portion of it.
- After a portion with an error, the next one is half as large, down to the single run that causes
  the error.
- After a portion that the broker had no room for, a single run follows after a pause. The pause
  grows while there is still no room.
- While a queue stays full, one message of each kind is tried per ``LONGEST_PAUSE``, regardless of
  how many runs wait.
- If a run that is published alone fails with a broker error, it goes to the end of the backlog. So
  it doesn't block its kind.
- After a successful portion, one of twice the size follows at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django_dcron.dispatch.base import DueRun

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0
"""Seconds between tries of rejected runs. The pause doubles from the first to the longest. The
longest is short, so that dispatch resumes soon after the broker recovers.
"""
LONGEST_PAUSE_WITHOUT_BROKER = 1.0
"""The longest pause in seconds while the broker is unreachable. A try may also wait in vain for an
answer (``dispatch.broker_connection.TIMEOUT``). Dispatch resumes within the sum of both.
"""

Kind = tuple[str, str]
"""Target and queue."""


class AgendaEntry(NamedTuple):
    """A run in the order of its due time. No two entries have the same ``order``."""

    due_at: datetime
    order: int
    run: DueRun
    message: Any
    """The message that the dispatcher has prepared."""


def kind_of(entry: AgendaEntry) -> Kind:
    return entry.run.target, entry.run.queue


def by_kind(entries: Iterable[AgendaEntry]) -> dict[Kind, list[AgendaEntry]]:
    kinds: dict[Kind, list[AgendaEntry]] = {}
    for entry in entries:
        kinds.setdefault(kind_of(entry), []).append(entry)
    return kinds


def head_of(heap: list[AgendaEntry]) -> datetime | None:
    """Return the earliest due time. Needs no lock, even while another thread changes ``heap``."""
    try:
        return heap[0].due_at
    except IndexError:
        return None


class PublishBacklog:
    """The backlog of one kind. Not thread-safe."""

    def __init__(self, now: datetime) -> None:
        self._heap: list[AgendaEntry] = []
        self._last: list[AgendaEntry] = []
        """The runs to publish after all others."""
        self._portion = 1
        self._pause = 0.0
        self.next_at = now
        """The earliest time of the next portion. The backlog with the smallest value is next."""
        self.was_rejected = False
        """Whether the broker has rejected some of its runs."""

    def __len__(self) -> int:
        return len(self._heap) + len(self._last)

    @property
    def head(self) -> datetime | None:
        """The earliest due time in the backlog. Any thread may read it."""
        next_due = [
            head for heap in (self._heap, self._last) if (head := head_of(heap)) is not None
        ]
        return min(next_due, default=None)

    def add(self, entries: Iterable[AgendaEntry]) -> None:
        for entry in entries:
            heapq.heappush(self._heap, entry)

    def take(self, most: int) -> list[AgendaEntry]:
        """Remove and return the next portion. The caller reports its outcome."""
        if not self._heap:
            self._heap, self._last = self._last, []
        return [heapq.heappop(self._heap) for _ in range(min(self._portion, most, len(self._heap)))]

    def published(self, number: int, now: datetime) -> None:
        """Record that ``number`` runs of the portion were dispatched, and none is left."""
        self._portion = max(2 * number, 1)
        self._pause = 0.0
        self.next_at = now

    def failed(self, entries: list[AgendaEntry], now: datetime) -> None:
        """Return ``entries`` to the backlog, because the error of one of them blocked all."""
        self.add(entries)
        self._portion = max(len(entries) // 2, 1)
        self.next_at = now

    def rejected(
        self,
        entries: list[AgendaEntry],
        now: datetime,
        *,
        accepted_others: bool,
        by_error: bool = False,
    ) -> None:
        """Return the ``entries`` that the broker rejected.

        ``accepted_others``: the broker accepted other runs of the portion. ``by_error``: it
        rejected them because of an error, not because it had no room.
        """
        if by_error and not accepted_others and len(entries) == 1:
            heapq.heappush(self._last, entries[0])
        else:
            self.add(entries)
        self.was_rejected = True
        self._portion = 1
        self._pause = FIRST_PAUSE if accepted_others else next_pause(self._pause)
        self.next_at = now + timedelta(seconds=self._pause)


def next_pause(pause: float, longest: float = LONGEST_PAUSE) -> float:
    """Return twice the pause, between ``FIRST_PAUSE`` and ``longest``."""
    return min(max(2 * pause, FIRST_PAUSE), longest)
