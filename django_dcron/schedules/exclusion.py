"""Apply a calendar to a schedule.

A calendar of whole dates replaces the schedule's day rule and leaves its times of day unchanged.
Everything that reads a schedule by its fields (the walk over clock changes, the planned load)
therefore works here, too. A calendar with times, and a move to the end of the excluded time, select
or move the occurrences themselves (see ``windows``).

Invariants:

- Dates are those of the schedule's local time, even if a clock change moves the occurrence past
  midnight.
- The n-th working day of a month is counted in the dates that the calendar doesn't exclude.
- With ``SKIP``, a date counts if the schedule falls on it and the calendar doesn't exclude it.
- With ``NEXT_DAY``, a date that isn't excluded counts if the schedule falls on it or on one of the
  excluded dates directly before it.
- All times of an excluded date move together, each to the same time of day. An occurrence that is
  already there absorbs the moved one.
- ``at_or_after`` and ``at_or_before`` agree with ``on`` and mirror each other. The horizon bounds
  the work.
- ``@every`` measures elapsed time and has no dates, so it rejects a calendar.
- ``@at`` on a date that isn't excluded keeps its exact instant. On an excluded date it becomes a
  schedule with that one date.
- ``@never`` has no dates to exclude.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date
from functools import lru_cache
from typing import cast
from zoneinfo import ZoneInfo

from django_dcron.exceptions import InvalidSchedule
from django_dcron.schedules.calendar import ExcludedDates, ExclusionPolicy
from django_dcron.schedules.cron import Cron, parse_cron
from django_dcron.schedules.days import DAY, HORIZON, DayRule, Days
from django_dcron.schedules.rules import AnyOf, Every, Never, Once, WallClock
from django_dcron.schedules.schedule import Schedule
from django_dcron.schedules.search import Search
from django_dcron.schedules.windows import OpenTimes, Windowed
from django_dcron.schedules.zones import FIRST, LAST
from django_dcron.utils.messages import any_of
from django_dcron.utils.messages import gettext_noop as _


@lru_cache(maxsize=4096)
def apply_calendar(
    schedule: Schedule, calendar: ExcludedDates, policy: ExclusionPolicy
) -> Schedule:
    """Return the schedule with the calendar applied; raises ``InvalidSchedule`` for ``@every``."""
    rule = schedule.rule
    if isinstance(rule, AnyOf):
        lines = tuple(apply_calendar(line, calendar, policy) for line in rule.lines)
        return replace(schedule, calendar=calendar, exclusion=policy, rule=AnyOf(lines))
    if isinstance(rule, Every):
        raise InvalidSchedule(
            _(
                "Schedule %(value)s can't have a calendar, because it counts elapsed time "
                "instead of dates. Use cron fields such as */15 * * * *, a macro such as "
                "@daily, or @at."
            ),
            value=repr(schedule.text),
            code="elapsed_time",
        )
    if isinstance(rule, Never):
        return replace(schedule, calendar=calendar, exclusion=policy)
    if isinstance(rule, Windowed):
        raise TypeError("The schedule already has a calendar")
    if policy is ExclusionPolicy.NEXT_DAY and calendar.has_times:
        raise InvalidSchedule(
            _(
                "The calendar excludes times of day, so occurrences can't move to the next date. "
                "Use %(allowed)s."
            ),
            allowed=any_of([ExclusionPolicy.SKIP.value, ExclusionPolicy.WINDOW_END.value]),
            code="calendar_with_times",
        )
    if policy is ExclusionPolicy.WINDOW_END or calendar.has_times:
        moves = policy is ExclusionPolicy.WINDOW_END
        windowed = _windowed(rule, calendar, schedule.timezone, moves)
        return replace(schedule, calendar=calendar, exclusion=policy, rule=windowed)
    if isinstance(rule, Once):
        local = rule.at.replace(tzinfo=UTC).astimezone(ZoneInfo(schedule.timezone))
        if not calendar.excludes(local.date()):
            return replace(schedule, calendar=calendar, exclusion=policy)
        rule = WallClock(parse_cron(f"{local:%S %M %H %d %m ? %Y}"), schedule.timezone)
    rule = _excluding_dates(_with_working_days(rule, calendar), calendar, policy)
    return replace(schedule, calendar=calendar, exclusion=policy, rule=rule)


def without_exclusion(schedule: Schedule) -> Schedule:
    """Return the schedule without excluded dates, but with ``WD#n`` counted in its calendar."""
    calendar = schedule.calendar
    return schedule if calendar is None else _count_in(schedule.without_calendar, calendar)


def _count_in(schedule: Schedule, calendar: ExcludedDates) -> Schedule:
    rule = schedule.rule
    if isinstance(rule, AnyOf):
        lines = tuple(_count_in(line, calendar) for line in rule.lines)
        return replace(schedule, rule=AnyOf(lines))
    if isinstance(rule, WallClock):
        return replace(schedule, rule=_with_working_days(rule, calendar))
    return schedule


def _windowed(rule: WallClock | Once, calendar: ExcludedDates, zone: str, moves: bool) -> Windowed:
    if isinstance(rule, Once):
        return Windowed(rule, calendar, zone, moves, horizon=LAST - FIRST)
    rule = _with_working_days(rule, calendar)
    kept = None if moves else WallClock(cast("Cron", OpenTimes(rule.cron, calendar)), rule.zone)
    return Windowed(rule, calendar, zone, moves, kept)


def _excluding_dates(
    rule: WallClock, calendar: ExcludedDates, policy: ExclusionPolicy
) -> WallClock:
    """Return the rule with the days that remain, or to which excluded days move."""
    days_of = MovedDays if policy is ExclusionPolicy.NEXT_DAY else RemainingDays
    return rule._replace(cron=replace(rule.cron, days=days_of(rule.cron.days, calendar)))


def _with_working_days(rule: WallClock, calendar: ExcludedDates) -> WallClock:
    """Return the rule with working days counted in the calendar."""
    days = rule.cron.days
    if not isinstance(days, DayRule):
        return rule
    return rule._replace(cron=replace(rule.cron, days=days.with_calendar(calendar)))


class RemainingDays:
    """The days of a rule that the calendar doesn't exclude."""

    def __init__(self, days: Days, calendar: ExcludedDates):
        self._days = days
        self._calendar = calendar
        self._next = Search(self._find_next, date.min, date.max)
        self._previous = Search(self._find_previous, date.min, date.max)

    def on(self, day: date) -> bool:
        return self._days.on(day) and not self._calendar.excludes(day)

    def at_or_after(self, day: date) -> date | None:
        return self._next(day, _later(day))

    def at_or_before(self, day: date) -> date | None:
        return self._previous(day, _earlier(day))

    def _find_next(self, day: date, limit: date) -> date | None:
        while day <= limit:
            found = self._days.at_or_after(day)
            open_day = found and self._calendar.open_from(found)
            if found is not None and found == open_day:
                return found if found <= limit else None
            # If a search found nothing, no day within the horizon follows.
            following = open_day or _later(found or day)
            if following <= day:
                return None
            day = following
        return None

    def _find_previous(self, day: date, limit: date) -> date | None:
        while day >= limit:
            found = self._days.at_or_before(day)
            open_day = found and self._calendar.open_until(found)
            if found is not None and found == open_day:
                return found if found >= limit else None
            following = open_day or _earlier(found or day)
            if following >= day:
                return None
            day = following
        return None


class MovedDays:
    """The days of a rule, with each excluded day replaced by the next day that isn't excluded."""

    def __init__(self, days: Days, calendar: ExcludedDates):
        self._days = days
        self._calendar = calendar

    def on(self, day: date) -> bool:
        if self._calendar.excludes(day):
            return False
        if self._days.on(day):
            return True
        first = self._first_moved_to(day)
        source = self._days.at_or_before(day) if first < day else None
        return source is not None and source >= first

    def at_or_after(self, day: date) -> date | None:
        open_day = self._calendar.open_from(day)
        source = open_day and self._days.at_or_after(self._first_moved_to(open_day))
        found = source and self._calendar.open_from(source)
        return found if found is not None and found <= _later(day) else None

    def at_or_before(self, day: date) -> date | None:
        open_day = self._calendar.open_until(day)
        source = open_day and self._days.at_or_before(open_day)
        found = source and self._calendar.open_from(source)
        return found if found is not None and found >= _earlier(day) else None

    def _first_moved_to(self, open_day: date) -> date:
        """Return the first of the excluded dates directly before the open date ``open_day``.

        Without such dates, return ``open_day`` itself.
        """
        before = self._calendar.open_until(open_day - DAY)
        return before + DAY if before is not None else _earlier(open_day)


def _later(day: date) -> date:
    return min(day, date.max - HORIZON) + HORIZON


def _earlier(day: date) -> date:
    return max(day, date.min + HORIZON) - HORIZON
