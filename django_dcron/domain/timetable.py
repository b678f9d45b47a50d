"""A job's timetable: its schedule between its start and its end, and what a claim makes of the occurrences due.

Invariants of ``consider``:

- every occurrence from ``next_at`` up to ``horizon`` is in exactly one ``Span`` of the answer, or at or after the new
  ``next_at``: none is lost, none is in two;
- the work is bounded, whatever the outage: late occurrences beyond what the policy runs share one span;
- ``next_at`` moves on from the occurrence before it, never from the present, so that ``@every`` keeps its phase.

Occurrences fall on whole seconds, from ``BEGIN`` to before ``END``; a start or an end beyond is taken for these, so that no
sum of times leaves the calendar, whatever a row says.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django_dcron.domain.misfire import Backlog, Misfire, MisfirePolicy, Span
from django_dcron.domain.schedule import Schedule

COUNTED = 1000
"""How many late occurrences are counted one by one; of more it is only said that there are more."""
CLAIMED_AT_ONCE = 1000
"""How many occurrences of one job are considered at once; the rest follow in the next batch."""
BEGIN, END = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
WIDEST_OFFSET = timedelta(hours=15, minutes=59)
"""The widest offset from UTC that PostgreSQL takes with a time. No zone has one of more than 14 hours."""
INSTANT = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Considered:
    spans: tuple[Span, ...]
    next_at: datetime | None
    """The first occurrence not considered; None when there is none to come."""
    previous_at: datetime
    """The last one considered."""


@dataclass(frozen=True, slots=True)
class Timetable:
    schedule: Schedule
    starts_at: datetime | None = None
    ends_at: datetime | None = None

    def __post_init__(self) -> None:
        for name in ("starts_at", "ends_at"):
            bound = getattr(self, name)
            if bound is not None and not BEGIN <= bound <= END:
                object.__setattr__(self, name, BEGIN if bound < BEGIN else END)

    def next_after(self, instant: datetime) -> datetime | None:
        """The occurrence after an occurrence."""
        return self._within(self.schedule.next_after(instant))

    def first_after(self, now: datetime, previous: datetime | None = None) -> datetime | None:
        """Where a cursor starts: the first occurrence after ``now``, not before the start.

        ``@every`` counts from the start; without one from ``previous``, the occurrence considered last; else from now.
        """
        if self.schedule.interval is None:
            after = now if self.starts_at is None else max(now, self.starts_at - INSTANT)
            return self.next_after(after)
        start = self.starts_at and _whole_second(self.starts_at)
        if start and start > now:
            return self._within(start)
        anchor = (
            start or previous or (now + INSTANT).replace(microsecond=0)
        )  # ``now`` may be just before a second
        # Negative if ``previous`` was claimed ahead and then withdrawn.
        elapsed = (now - anchor) // self.schedule.interval
        return self.next_after(anchor + elapsed * self.schedule.interval)

    def backlog(self, first: datetime, before: datetime, limit: int) -> Backlog:
        """The occurrences from ``first`` (which is one) to just before ``before``, the first ``limit`` in full."""
        last = before - INSTANT if self.ends_at is None else min(before - INSTANT, self.ends_at)
        oldest = [first, *self.schedule.occurrences(first, last, limit - 1)]
        if len(oldest) < limit:
            return Backlog(oldest, oldest[-1], len(oldest))
        if interval := self.schedule.interval:
            more = (last - first) // interval
            return Backlog(oldest, first + more * interval, more + 1)
        newest = self.schedule.previous_before(last + INSTANT)
        if newest is None or newest <= oldest[-1]:
            return Backlog(oldest, oldest[-1], len(oldest))
        return Backlog(oldest, newest, len(oldest) + 1)

    def consider(
        self, next_at: datetime, *, late_before: datetime, horizon: datetime, misfire: Misfire
    ) -> Considered:
        """What becomes of the occurrences from ``next_at`` (which is one, and due) up to ``horizon``."""
        spans: list[Span] = []
        occurrence: datetime | None = next_at
        previous = next_at
        if next_at < late_before:
            run = misfire.catchup_limit if misfire.policy is MisfirePolicy.RUN_ALL else 0
            backlog = self.backlog(next_at, late_before, run + COUNTED)
            spans, previous = misfire.settle(backlog), backlog.newest
            occurrence = self.next_after(previous)
        while occurrence is not None and occurrence <= horizon and len(spans) < CLAIMED_AT_ONCE:
            spans.append(Span(occurrence))
            previous, occurrence = occurrence, self.next_after(occurrence)
        return Considered(tuple(spans), occurrence, previous)

    def _within(self, instant: datetime | None) -> datetime | None:
        if instant is None or not BEGIN <= instant < END:
            return None
        return None if self.ends_at is not None and instant > self.ends_at else instant


def _whole_second(instant: datetime) -> datetime:
    floor = instant.replace(microsecond=0)
    return floor if floor == instant else floor + SECOND
