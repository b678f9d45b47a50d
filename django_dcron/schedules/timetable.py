"""Bound a job's schedule by its start and end, and decide which due occurrences a claim covers.

Invariants of ``plan_claim``:

- Each occurrence from ``next_at`` up to ``horizon`` is either in exactly one ``PlannedRun`` of the
  result, or at or after the new ``next_at``. None is lost or duplicated.
- The work is bounded, however long the outage: late occurrences beyond what the misfire policy runs
  share one planned run.
- ``next_at`` advances from the previous occurrence, never from the present, so that ``@every``
  keeps its phase.

Occurrences fall on whole seconds, from ``BEGIN`` to before ``END``. An earlier start or a later end
is clamped to these, so that date arithmetic can't overflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django_dcron.policies.misfire import LateOccurrences, Misfire, MisfirePolicy, PlannedRun
from django_dcron.schedules.schedule import Schedule

MAX_LATE_COUNTED = 1000
"""The number of late occurrences counted one by one. Beyond it, the count is a lower bound, unless
the schedule is an interval.
"""
MAX_PLANNED_RUNS = 1000
"""The maximum number of a job's occurrences in one batch; the rest follow in the next batch."""
BEGIN, END = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
WIDEST_OFFSET = timedelta(hours=15, minutes=59)
"""The largest UTC offset that PostgreSQL accepts. No zone has more than 14 hours."""
MICROSECOND = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    planned_runs: tuple[PlannedRun, ...]
    next_at: datetime | None
    """The first occurrence after the planned ones; None if there are no more."""
    previous_at: datetime
    """The last planned or missed occurrence."""


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
        """Return the occurrence after the occurrence ``instant``."""
        return self._within(self.schedule.next_after(instant))

    def first_after(self, now: datetime, previous: datetime | None = None) -> datetime | None:
        """Return the first occurrence after ``now`` and not before ``starts_at``.

        A new cursor starts at this occurrence.

        ``@every`` counts from the start. Without a start, it counts from ``previous``, the last
        claimed occurrence, or else from now.
        """
        if self.schedule.interval is None:
            after = now if self.starts_at is None else max(now, self.starts_at - MICROSECOND)
            return self.next_after(after)
        start = self.starts_at and _whole_second(self.starts_at)
        if start and start > now:
            return self._within(start)
        # ``MICROSECOND`` is added because ``now`` may be just before a second.
        anchor = start or previous or (now + MICROSECOND).replace(microsecond=0)
        # ``elapsed`` is negative if ``previous`` was claimed ahead and then withdrawn.
        elapsed = (now - anchor) // self.schedule.interval
        return self.next_after(anchor + elapsed * self.schedule.interval)

    def late_occurrences(self, first: datetime, before: datetime, limit: int) -> LateOccurrences:
        """Return the occurrences from the occurrence ``first`` to just before ``before``.

        Only the first ``limit`` are listed.
        """
        last = before - MICROSECOND
        if self.ends_at is not None:
            last = min(last, self.ends_at)
        oldest = [first, *self.schedule.occurrences(first, last, limit - 1)]
        if len(oldest) < limit:
            return LateOccurrences(oldest, oldest[-1], len(oldest))
        if interval := self.schedule.interval:
            more = (last - first) // interval
            return LateOccurrences(oldest, first + more * interval, more + 1)
        newest = self.schedule.previous_before(last + MICROSECOND)
        if newest is None or newest <= oldest[-1]:
            return LateOccurrences(oldest, oldest[-1], len(oldest))
        return LateOccurrences(oldest, newest, len(oldest) + 1)

    def plan_claim(
        self, next_at: datetime, *, late_before: datetime, horizon: datetime, misfire: Misfire
    ) -> ClaimPlan:
        """Decide about the occurrences from ``next_at``, a due occurrence, up to ``horizon``."""
        planned_runs: list[PlannedRun] = []
        occurrence: datetime | None = next_at
        previous = next_at
        if next_at < late_before:
            runs = misfire.catchup_limit if misfire.policy is MisfirePolicy.RUN_ALL else 0
            late = self.late_occurrences(next_at, late_before, runs + MAX_LATE_COUNTED)
            planned_runs, previous = misfire.plan_runs(late), late.newest
            occurrence = self.next_after(previous)
        while (
            occurrence is not None
            and occurrence <= horizon
            and len(planned_runs) < MAX_PLANNED_RUNS
        ):
            planned_runs.append(PlannedRun(occurrence))
            previous, occurrence = occurrence, self.next_after(occurrence)
        return ClaimPlan(tuple(planned_runs), occurrence, previous)

    def _within(self, instant: datetime | None) -> datetime | None:
        if instant is None or not BEGIN <= instant < END:
            return None
        return None if self.ends_at is not None and instant > self.ends_at else instant


def _whole_second(instant: datetime) -> datetime:
    floor = instant.replace(microsecond=0)
    return floor if floor == instant else floor + SECOND
