"""Apply a calendar with times to a rule: drop the occurrences at excluded times, or move them.

Invariants:

- An instant is excluded if the calendar excludes its local time in the rule's zone. In a repeated
  hour, the instants of both passes are excluded.
- Without ``moves``, an occurrence is dropped if its instant is excluded, or the local time that the
  fields name. The two differ only where the clocks skip that local time.
- With ``moves``, an occurrence at an excluded instant moves to the first open instant after it. All
  occurrences of one excluded period become one occurrence.
- Within the horizon, ``next_after`` and ``previous_before`` mirror each other. No result is further
  away than the horizon, except that of an ``@at``. Nothing else limits the search.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Protocol

from django_dcron.schedules.calendar import ExcludedDates
from django_dcron.schedules.cron import Cron
from django_dcron.schedules.days import DAY, HORIZON
from django_dcron.schedules.search import Search
from django_dcron.schedules.times_of_day import Interval, outside
from django_dcron.schedules.zones import FIRST, LAST, SECOND, SLACK, offset_period_at

KNOWN = 100
"""For how many different sets of excluded times a search remembers the answer."""
WEEK = timedelta(days=7)


class OccurrenceRule(Protocol):
    """The occurrences of a rule; instants are naive UTC."""

    def next_after(self, instant: datetime) -> datetime | None: ...

    def previous_before(self, instant: datetime) -> datetime | None: ...


class OpenTimes:
    """The open local times of cron fields. ``daylight`` uses it in place of a ``Cron``.

    A search checks date by date, but skips periods in which no weekday has an open time.
    """

    def __init__(self, cron: Cron, calendar: ExcludedDates) -> None:
        self.fixed = cron.fixed
        self._cron = cron
        self._calendar = calendar
        self._is_possible = any(
            cron.has_time_in(begin, end)
            for weekday in range(7)
            for begin, end in calendar.possible_times(weekday)
        )
        self._known: dict[tuple[Interval, ...], bool] = {}
        """Whether the fields have an open time on a date with these excluded times."""
        self._next = Search(self._find_next, FIRST, LAST)
        self._previous = Search(self._find_previous, FIRST, LAST)

    def at_or_after(self, local: datetime) -> datetime | None:
        return self._next(local, _later(local, HORIZON)) if self._is_possible else None

    def at_or_before(self, local: datetime) -> datetime | None:
        return self._previous(local, _earlier(local, HORIZON)) if self._is_possible else None

    def _find_next(self, local: datetime, limit: datetime) -> datetime | None:
        while local <= limit:
            found = self._cron.at_or_after(local)
            opened = found and self._calendar.open_time_from(found)
            if found is not None and found == opened:
                return found if found <= limit else None
            # If a search found nothing, no time within the horizon follows.
            following = opened or _later(found or local, HORIZON)
            if opened and not self._has_time(opened.date()):
                day = self._next_day(opened.date(), limit.date())
                if day is None:
                    return None
                following = datetime.combine(day, time.min)
            if following <= local:
                return None
            local = following
        return None

    def _find_previous(self, local: datetime, limit: datetime) -> datetime | None:
        while local >= limit:
            found = self._cron.at_or_before(local)
            opened = found and self._calendar.open_time_until(found)
            if found is not None and found == opened:
                return found if found >= limit else None
            following = opened or _earlier(found or local, HORIZON)
            if opened and not self._has_time(opened.date()):
                day = self._previous_day(opened.date(), limit.date())
                if day is None:
                    return None
                following = datetime.combine(day, time.max).replace(microsecond=0)
            if following >= local:
                return None
            local = following
        return None

    def _next_day(self, day: date, limit: date) -> date | None:
        """Return the first date of the fields after ``day`` with an open time, up to ``limit``.

        ``day`` has no open time.
        """
        while (day := self._steady_dates(day)[1] + DAY) <= limit:
            found = self._cron.days.at_or_after(day)
            if found is None or self._has_time(found):
                return found
            day = found
        return None

    def _previous_day(self, day: date, limit: date) -> date | None:
        """Return the last date of the fields before ``day`` with an open time, from ``limit`` on.

        ``day`` has no open time. Mirrors ``_next_day``.
        """
        while (day := self._steady_dates(day)[0] - DAY) >= limit:
            found = self._cron.days.at_or_before(day)
            if found is None or self._has_time(found):
                return found
            day = found
        return None

    def _steady_dates(self, day: date) -> tuple[date, date]:
        """Return the first and last date of a period around ``day`` without open times.

        ``day`` has no open time. The period may be ``day`` alone.
        """
        first, last = self._calendar.steady_dates(day)
        if last - first < WEEK:
            return day, day
        low = max(first, min(day, last - WEEK))
        dates = (low + number * DAY for number in range(7))
        return (day, day) if any(map(self._has_time, dates)) else (first, last)

    def _has_time(self, day: date) -> bool:
        """Return whether the fields have an open time on this date."""
        excluded = self._calendar.excluded_times(day)
        found = self._known.get(excluded)
        if found is None:
            found = any(self._cron.has_time_in(begin, end) for begin, end in outside(excluded))
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[excluded] = found
        return found


class Windowed:
    """The occurrences of ``rule`` with a calendar applied.

    ``moves``: whether occurrences move to the end of the excluded time; otherwise they are dropped.
    ``kept``: for cron fields, the rule without the excluded local times.
    ``horizon``: how far away a result may be.
    """

    def __init__(
        self,
        rule: OccurrenceRule,
        calendar: ExcludedDates,
        zone: str,
        moves: bool,
        kept: OccurrenceRule | None = None,
        horizon: timedelta = HORIZON,
    ) -> None:
        self.rule = rule
        self.calendar = calendar
        self.zone = zone
        self.moves = moves
        self._kept = kept or rule
        self._horizon = horizon
        self._next_moved = Search(self._find_next_moved, FIRST, LAST)

    def next_after(self, instant: datetime) -> datetime | None:
        limit = _later(instant, self._horizon)
        if self.moves:
            return self._next_moved(instant.replace(microsecond=0) + SECOND, limit)
        found = self._kept.next_after(instant)
        while found is not None and found <= limit:
            end = self.open_from(found)
            if end == found:
                return found
            found = end and self._kept.next_after(end - SECOND)
        return None

    def previous_before(self, instant: datetime) -> datetime | None:
        limit = _earlier(instant, self._horizon)
        if self.moves:
            found = self._previous_moved(instant)
            return found if found is not None and found >= limit else None
        found = self._kept.previous_before(instant)
        while found is not None and found >= limit:
            last = self._open_until(found)
            if last == found:
                return found
            found = last and self._kept.previous_before(last + SECOND)
        return None

    def excludes(self, instant: datetime) -> bool:
        local = instant + offset_period_at(self.zone, instant).offset
        second = local.hour * 3600 + local.minute * 60 + local.second
        times = self.calendar.excluded_times(local.date())
        return any(begin <= second < end for begin, end in times)

    def open_from(self, instant: datetime) -> datetime | None:
        """Return the first open second from ``instant`` on."""
        while FIRST <= instant < LAST:
            period = offset_period_at(self.zone, instant)
            local = self.calendar.open_time_from(instant + period.offset)
            if local is None:
                return None
            if local - period.offset < period.end:
                return local - period.offset
            # Until local time is near ``local``, no clock change matters.
            instant = max(period.end, local - period.offset - SLACK)
        return None

    def _open_until(self, instant: datetime) -> datetime | None:
        """Return the last open second up to ``instant``."""
        while FIRST <= instant < LAST:
            period = offset_period_at(self.zone, instant)
            local = self.calendar.open_time_until(instant + period.offset)
            if local is None:
                return None
            if local - period.offset >= period.start:
                return local - period.offset
            instant = min(period.start - SECOND, local - period.offset + SLACK)
        return None

    def _first_since_open(self, instant: datetime) -> datetime | None:
        """Return the rule's first time after the last open second before ``instant``."""
        before = self._open_until(instant - SECOND)
        if before is None:  # excluded for as long as the search looks back
            before = _earlier(instant, HORIZON)
        return self.rule.next_after(before) or self.rule.next_after(instant - SECOND)

    def _find_next_moved(self, first: datetime, limit: datetime) -> datetime | None:
        """Return the first moved occurrence from ``first`` to ``limit``.

        Moving keeps the order, so the first suitable occurrence gives the first result.
        """
        while first <= limit:
            # Occurrences since the last open second before ``first`` move to ``first`` or later.
            source = self._first_since_open(first)
            if source is None and self._horizon > HORIZON:
                return None  # an ``@at`` in the past
            found = source and self.open_from(max(source, first))
            if found is not None:
                return found if found <= limit else None
            following = _later(max(source or first, first), HORIZON)
            if following <= first:
                return None
            first = following
        return None

    def _previous_moved(self, instant: datetime) -> datetime | None:
        whole = instant.replace(microsecond=0)
        last = self._open_until(whole if whole < instant else whole - SECOND)
        # Occurrences after the last open second move past it.
        found = last and self.rule.previous_before(last + SECOND)
        return found and self.open_from(found)


def _later(instant: datetime, by: timedelta) -> datetime:
    return instant + by if by < LAST - instant else LAST


def _earlier(instant: datetime, by: timedelta) -> datetime:
    return instant - by if by < instant - FIRST else FIRST
