"""Decide what a job's next days look like: occurrences, exclusions and freezes of each day.

Days are those of the schedule's time zone.

Invariants:

- The work is bounded for each day. A day with more than ``LISTED`` occurrences is counted from the
  fields of the schedule (see ``load``), so that a schedule of every second is as cheap as one of
  every minute.
- Days before the first occurrence and past days have no occurrences.
- A freeze removes no occurrences: it only marks the days that it covers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

from django_dcron.schedules.days import DAY
from django_dcron.schedules.exclusion_reasons import NO_REASONS, ExclusionReasons
from django_dcron.schedules.load import HOUR, MINUTE, RealHours
from django_dcron.schedules.times_of_day import ALL_TIMES, Interval
from django_dcron.schedules.timetable import MICROSECOND, Timetable

LISTED = 24
"""Up to this number, the occurrences of a day are listed one by one."""


class DayOccurrences(NamedTuple):
    number: int
    first: datetime
    """The first occurrence of the day, aware UTC."""


class FrozenPeriod(NamedTuple):
    begin: datetime
    end: datetime | None
    """None: until someone ends the freeze."""
    reason: str

    def covers(self, begin: datetime, end: datetime) -> bool:
        """Return whether the freeze is in force at any moment from ``begin`` to before ``end``."""
        return self.begin < end and (self.end is None or self.end > begin)


@dataclass(frozen=True, slots=True)
class UpcomingDay:
    day: date
    is_past: bool = False
    is_outside: bool = False
    """Whether the day is before the job's start or after its end."""
    occurrences: DayOccurrences | None = None
    excluded: tuple[Interval, ...] = ()
    """The times that the calendar excludes, in seconds of the day."""
    reasons: ExclusionReasons = NO_REASONS
    freezes: tuple[FrozenPeriod, ...] = ()

    @property
    def is_excluded(self) -> bool:
        """Whether the calendar excludes all of the day."""
        return self.excluded == ALL_TIMES


def upcoming_days(
    days: Iterable[date],
    *,
    now: datetime,
    timetable: Timetable,
    occurrences: Mapping[date, DayOccurrences],
    reasons_on: Callable[[date], ExclusionReasons],
    freezes: Sequence[FrozenPeriod] = (),
) -> Iterator[UpcomingDay]:
    """Yield what is planned for each of the ``days``.

    ``reasons_on`` returns why the schedule's calendar excludes times of a day.
    """
    zone, calendar = ZoneInfo(timetable.schedule.timezone), timetable.schedule.calendar
    for day in days:
        begin, end = midnight(day, zone), midnight(day + DAY, zone)
        if end <= now:
            yield UpcomingDay(day, is_past=True)
            continue
        excluded = calendar.excluded_times(day) if calendar else ()
        yield UpcomingDay(
            day,
            is_outside=_is_outside(timetable, begin, end),
            occurrences=occurrences.get(day),
            excluded=excluded,
            reasons=reasons_on(day) if excluded else NO_REASONS,
            freezes=tuple(each for each in freezes if each.covers(max(begin, now), end)),
        )


def _is_outside(timetable: Timetable, begin: datetime, end: datetime) -> bool:
    starts_at, ends_at = timetable.starts_at, timetable.ends_at
    return bool((starts_at and starts_at >= end) or (ends_at and ends_at < begin))


def occurrences_per_day(
    timetable: Timetable, first: datetime, last_day: date
) -> dict[date, DayOccurrences]:
    """Return the days up to ``last_day`` that have occurrences, with their number.

    ``first`` is the first occurrence that counts.
    """
    zone = ZoneInfo(timetable.schedule.timezone)
    found: dict[date, DayOccurrences] = {}
    following: datetime | None = first
    while following is not None and (day := following.astimezone(zone).date()) <= last_day:
        occurrence, count, end = following, 0, midnight(day + DAY, zone)
        while following is not None and following < end and count < LISTED:
            count, following = count + 1, timetable.next_after(following)
        if following is not None and following < end:
            count, following = _count_until(end, timetable, occurrence, midnight(day, zone))
        found[day] = DayOccurrences(count, occurrence)
    return found


def _count_until(
    end: datetime, timetable: Timetable, first: datetime, begin: datetime
) -> tuple[int, datetime | None]:
    """Return the number of occurrences from ``first`` to before ``end``, and the next occurrence.

    ``begin`` and ``end`` are the bounds of the day.
    """
    stop = end if timetable.ends_at is None else min(end, timetable.ends_at + MICROSECOND)
    if interval := timetable.schedule.interval:
        count = -((first - stop) // interval)
        return count, timetable.next_after(first + (count - 1) * interval)
    hours = RealHours(begin, -((begin - end) // HOUR))
    bounded = Timetable(timetable.schedule, first, stop - MICROSECOND)
    if first - begin < MINUTE and stop - begin == hours.count * HOUR:
        count = sum(number for _hour, number in hours.occurrences(bounded))
    else:
        count = sum(number for _minute, number in hours.minutes(bounded))
    # Both count the whole first and last minutes.
    last = stop - MICROSECOND
    before = timetable.schedule.occurrences(_minute_of(first) - MICROSECOND, first - MICROSECOND)
    after = timetable.schedule.occurrences(last, _minute_of(last) + MINUTE - MICROSECOND)
    return count - len([*before, *after]), timetable.next_after(end - MICROSECOND)


def _minute_of(instant: datetime) -> datetime:
    return instant.replace(second=0, microsecond=0)


def midnight(day: date, zone: tzinfo) -> datetime:
    """Return the first instant of a local day, in UTC."""
    return datetime.combine(day, time.min, zone).astimezone(UTC)


def days_of_months(first: date, months: int) -> list[date]:
    """Return all days of ``months`` months from the month of ``first`` on."""
    begin = first.replace(day=1)
    end = begin
    for _ in range(months):
        end = (end + timedelta(days=31)).replace(day=1)
    return [begin + number * DAY for number in range((end - begin).days)]
