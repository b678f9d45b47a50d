"""Runs that are handed over apart from all others, because the broker did not take one of their kind.

A kind are the runs of one target and queue, which decide where they go. Invariants:

- While a kind has a backlog, all its runs go there. So the others wait for one portion of it at the most.
- A portion with an error is followed by half as many, down to the one run that the error belongs to.
- A portion that the broker had no room for is followed by a single run, after a pause; if there is none for that one
  either, the pause grows. So a queue that stays full costs one message each ``LONGEST_PAUSE``, however many runs wait.
- A run that meets an error of the broker's when it is tried alone lets all others go first, so none keeps its whole kind back.
- A portion that went through is followed at once by twice as many.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django_dcron.dispatch.base import DueRun

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0
"""Seconds between tries of what the broker does not take: doubled from the first to the longest. No longer, as a broker that
is back should not be kept waiting."""

Entry = tuple[datetime, int, DueRun, Any]
"""Due time, a number that breaks ties, the run, and what the dispatcher prepared for it."""
Kind = tuple[str, str]


def kind_of(entry: Entry) -> Kind:
    return entry[2].target, entry[2].queue


def by_kind(entries: Iterable[Entry]) -> dict[Kind, list[Entry]]:
    kinds: dict[Kind, list[Entry]] = {}
    for entry in entries:
        kinds.setdefault(kind_of(entry), []).append(entry)
    return kinds


def head_of(heap: list[Entry]) -> datetime | None:
    """The earliest due time; needs no lock, whoever changes ``heap`` meanwhile."""
    try:
        return heap[0][0]
    except IndexError:
        return None


class Backlog:
    """Of one kind. Not thread-safe."""

    def __init__(self, now: datetime) -> None:
        self._heap: list[Entry] = []
        self._behind: list[Entry] = []
        """Those that let all others go first."""
        self._portion = 1
        self._pause = 0.0
        self.next_at = now
        """Its next portion is not to be tried before; nor before those of others that have waited longer."""
        self.full = False
        """The broker had no room for some of it."""

    def __len__(self) -> int:
        return len(self._heap) + len(self._behind)

    @property
    def head(self) -> datetime | None:
        """The earliest due time on it. May be asked from any thread."""
        heads = [head for heap in (self._heap, self._behind) if (head := head_of(heap)) is not None]
        return min(heads, default=None)

    def add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            heapq.heappush(self._heap, entry)

    def take(self, most: int) -> list[Entry]:
        """The next portion: off the backlog, until it is known what became of it."""
        if not self._heap:
            self._heap, self._behind = self._behind, []
        return [heapq.heappop(self._heap) for _ in range(min(self._portion, most, len(self._heap)))]

    def went_through(self, taken: int, now: datetime) -> None:
        """What was tried is settled, ``taken`` of it by being handed over."""
        self._portion = max(2 * taken, 1)
        self._pause = 0.0
        self.next_at = now

    def raised(self, entries: list[Entry], now: datetime) -> None:
        """The error of one of ``entries`` kept all of them back."""
        self.add(entries)
        self._portion = max(len(entries) // 2, 1)
        self.next_at = now

    def had_no_room(
        self, entries: list[Entry], now: datetime, *, for_any: bool, by_error: bool = False
    ) -> None:
        """The broker took all that was tried but ``entries``; ``for_any``: it did take some; ``by_error``: for no want of room."""
        if by_error and not for_any and len(entries) == 1:
            heapq.heappush(self._behind, entries[0])
        else:
            self.add(entries)
        self.full = True
        self._portion = 1
        self._pause = FIRST_PAUSE if for_any else longer(self._pause)
        self.next_at = now + timedelta(seconds=self._pause)


def longer(pause: float) -> float:
    return min(max(2 * pause, FIRST_PAUSE), LONGEST_PAUSE)
