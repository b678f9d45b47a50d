"""Decide which days a schedule falls on: an exact test for a day, and a croniter search.

croniter is reliable on naive local time but lenient with edge cases. It therefore receives only
explicit numbers, in searches that it interprets as this package does. There is one search for plain
days of month, one for plain weekdays, and one for ``n#k`` with ``nL``. A search may return too many
days (``LW`` becomes 26-31), but never too few. ``DayRule.on`` decides.

Invariants:

- A search that can never match is dropped, because it would cover the whole horizon.
- Each pass advances by at least a day and stops at ``HORIZON``, so the work is bounded.
- croniter objects are mutable, so each query uses a copy. Threads can share rules.
"""

# ruff: noqa: DTZ001 -- croniter computes in naive local time

from __future__ import annotations

import copy
from calendar import isleap, monthrange
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from typing import Protocol

from croniter import croniter

from django_dcron.schedules.fields import CronField
from django_dcron.schedules.special_days import NthWeekday, NthWorkingDay, WorkingDays

DAY = timedelta(days=1)
HORIZON_YEARS = 50
# Fifty years, rounded up to whole days.
HORIZON = timedelta(days=18_263)
FIRST_DAY, LAST_DAY = date(2, 1, 1), date(9998, 12, 31)

_MINUTE = timedelta(minutes=1)
# Days to test one by one before croniter searches. The tests are much faster, and the windows of
# ``LW`` and ``nW`` aren't longer.
_WEEK = 7
# A year has one of 14 shapes (leap or not, first weekday). These 28 years include all of them.
_ALL_SHAPES = range(2000, 2028)
_MONTH_DAYS = frozenset(range(1, 32))

_DayTest = Callable[[date], bool]


class Days(Protocol):
    """A set of calendar days that can be searched in both directions."""

    def on(self, day: date) -> bool: ...

    def at_or_after(self, day: date) -> date | None: ...

    def at_or_before(self, day: date) -> date | None: ...


class DayRule:
    """The day, month and year fields of an expression, combined by Vixie cron's rule.

    If either day field starts with ``*`` or is ``?``, a day must match both day fields. Otherwise
    it must match one of them. Without a ``years`` field, any year matches.
    """

    def __init__(
        self, dom: CronField, dow: CronField, months: CronField, years: CronField | None
    ) -> None:
        self._dom, self._dow = frozenset(dom.values), frozenset(dow.values)
        self._dom_specials, self._dow_specials = dom.specials, dow.specials
        self._both = dom.starred or dow.starred
        self._months = frozenset(months.values)
        self._years = None if years is None or years.resolved == "*" else frozenset(years.values)
        self._searches = tuple(self._croniter_searches())
        self._fields = (dom, dow, months, years)

    def with_calendar(self, calendar: WorkingDays) -> DayRule:
        """Return the rule with the working days of ``calendar``."""
        dom, dow, months, years = self._fields
        if not any(isinstance(special, NthWorkingDay) for special in dom.specials):
            return self
        specials = tuple(
            replace(special, calendar=calendar) if isinstance(special, NthWorkingDay) else special
            for special in dom.specials
        )
        return DayRule(replace(dom, specials=specials), dow, months, years)

    def on(self, day: date) -> bool:
        """Return whether the schedule falls on ``day``."""
        if day.month not in self._months or (
            self._years is not None and day.year not in self._years
        ):
            return False
        by_month = day.day in self._dom or any(
            special.matches(day) for special in self._dom_specials
        )
        if by_month is not self._both:  # the weekday can't change the result
            return by_month
        return day.isoweekday() % 7 in self._dow or any(
            special.matches(day) for special in self._dow_specials
        )

    @property
    def possible(self) -> bool:
        """Whether any day matches."""
        return any(self.on(day) for day in self._sample_days())

    def at_or_after(self, day: date) -> date | None:
        """Return the first matching day from ``day`` on, or None past the horizon."""
        last = min(day, LAST_DAY - HORIZON) + HORIZON
        ahead: date | None = day
        while ahead is not None and FIRST_DAY <= ahead <= last:
            for _ in range(_WEEK):
                if self.on(ahead):
                    return ahead
                ahead += DAY
            ahead = min(
                filter(None, [search.at_or_after(ahead) for search in self._searches]), default=None
            )
        return None

    def at_or_before(self, day: date) -> date | None:
        """Return the last matching day up to ``day``, or None past the horizon."""
        first = max(day, FIRST_DAY + HORIZON) - HORIZON
        back: date | None = day
        while back is not None and first <= back <= LAST_DAY:
            for _ in range(_WEEK):
                if self.on(back):
                    return back
                back -= DAY
            back = max(
                filter(None, [search.at_or_before(back) for search in self._searches]), default=None
            )
        return None

    def _croniter_searches(self) -> Iterator[_DaySearch]:
        windows = [
            special.window()
            for special in self._dom_specials
            if not isinstance(special, NthWeekday)
        ]
        dom = self._dom.union(*windows)
        nth = [special for special in self._dow_specials if isinstance(special, NthWeekday)]
        weekdays: list[tuple[str, _DayTest]] = []
        if self._dow:
            weekdays.append(
                (_format_days(self._dow, 7), lambda day: day.isoweekday() % 7 in self._dow)
            )
        if nth:
            text = ",".join(special.croniter() for special in nth)
            weekdays.append((text, lambda day: any(special.matches(day) for special in nth)))
        parts = [(dom if self._both else _MONTH_DAYS, text, test) for text, test in weekdays]
        if not self._both:
            parts.append((dom, "*", lambda _: True))
        for days, text, test in parts:
            if any(day.day in days and test(day) for day in self._sample_days()):
                yield _DaySearch(
                    _format_days(days, 31), _format_days(self._months, 12), text, self._years
                )

    def _sample_days(self) -> Iterator[date]:
        """Yield all days of the rule's months, in one year of each shape that its years include."""
        years = self._years or _ALL_SHAPES
        shapes = {(isleap(year), date(year, 1, 1).weekday()): year for year in years}
        for year in shapes.values():
            for month in self._months:
                yield from (date(year, month, day + 1) for day in range(monthrange(year, month)[1]))


class _DaySearch:
    """One croniter expression over whole days."""

    def __init__(self, days: str, months: str, weekdays: str, years: frozenset[int] | None) -> None:
        # croniter is faster with the shorter form, so the year is included only if needed.
        text = f"0 0 {days} {months} {weekdays}"
        self._engine = croniter(
            text if years is None else f"0 {text} {_format_days(years)}",
            datetime(2000, 1, 1),
            ret_type=datetime,
            day_or=False,
            max_years_between_matches=HORIZON_YEARS,
            second_at_beginning=years is not None,
        )

    def at_or_after(self, day: date) -> date | None:
        start = datetime.combine(day, time.min) - _MINUTE
        return self._search(lambda engine: engine.get_next(start_time=start))

    def at_or_before(self, day: date) -> date | None:
        start = datetime.combine(day, time.min) + _MINUTE
        return self._search(lambda engine: engine.get_prev(start_time=start))

    def _search(self, step: Callable[[croniter], datetime]) -> date | None:
        try:
            return step(copy.copy(self._engine)).date()
        except (ValueError, OverflowError):  # no match within the horizon or the calendar
            return None


def _format_days(values: frozenset[int], all_of: int = 0) -> str:
    return "*" if len(values) == all_of else ",".join(map(str, sorted(values)))
