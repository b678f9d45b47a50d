"""Which days a schedule falls on: an exact test for a day, and croniter to search the calendar.

croniter is sound on naive local time and loose at the edges, so it is only handed explicit numbers, split into
legs that it reads the way we do (one for plain days of month, one for plain weekdays, one for `n#k` and `nL`).
A leg may offer too many days (`LW` is handed over as 26-31), never too few; `DayRule.on` has the last word.
Invariants:
- a leg that can never fire is dropped, because looking for its next day would search the whole horizon;
- searching moves on by at least a day at each pass and stops `HORIZON` away, so it is bounded;
- croniter objects are mutable, so every question is put to a copy: rules can be shared between threads.
"""

# ruff: noqa: DTZ001 -- croniter is asked in naive local time

import copy
from calendar import isleap, monthrange
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from typing import Protocol

from croniter import croniter

from django_dcron.domain.fields import Field
from django_dcron.domain.special_days import NthWeekday

DAY = timedelta(days=1)
HORIZON_YEARS = 50
# Fifty years, rounded up to whole days.
HORIZON = timedelta(days=18_263)
FIRST_DAY, LAST_DAY = date(2, 1, 1), date(9998, 12, 31)

_MINUTE = timedelta(minutes=1)
# Days to test one by one before asking croniter: as wide as the windows of `LW` and `nW`, and far cheaper.
_WEEK = 7
# A year has one of 14 shapes (leap or not, first weekday); these 28 show them all.
_ALL_SHAPES = range(2000, 2028)
_MONTH_DAYS = frozenset(range(1, 32))

_DayTest = Callable[[date], bool]


class Days(Protocol):
    """Some days of the calendar, searchable both ways."""

    def on(self, day: date) -> bool: ...

    def at_or_after(self, day: date) -> date | None: ...

    def at_or_before(self, day: date) -> date | None: ...


class DayRule:
    """The day fields, months and years of an expression, joined by Vixie cron's rule.

    If either day field starts with `*` (or is `?`) a day must match both, otherwise either. Without a `years`
    field any year will do.
    """

    def __init__(self, dom: Field, dow: Field, months: Field, years: Field | None) -> None:
        self._dom, self._dow = frozenset(dom.values), frozenset(dow.values)
        self._dom_specials, self._dow_specials = dom.specials, dow.specials
        self._both = dom.starred or dow.starred
        self._months = frozenset(months.values)
        self._years = None if years is None or years.resolved == "*" else frozenset(years.values)
        self._legs = tuple(self._croniter_legs())

    def on(self, day: date) -> bool:
        """Whether the schedule falls on `day`."""
        if day.month not in self._months or (self._years is not None and day.year not in self._years):
            return False
        by_month = day.day in self._dom or any(special.matches(day) for special in self._dom_specials)
        if by_month is not self._both:  # one answer is enough
            return by_month
        return day.isoweekday() % 7 in self._dow or any(
            special.matches(day) for special in self._dow_specials
        )

    @property
    def possible(self) -> bool:
        """Whether any day at all matches."""
        return any(self.on(day) for day in self._sample_days())

    def at_or_after(self, day: date) -> date | None:
        """The first matching day from `day` on, None past the horizon."""
        last = min(day, LAST_DAY - HORIZON) + HORIZON
        ahead: date | None = day
        while ahead is not None and FIRST_DAY <= ahead <= last:
            for _ in range(_WEEK):
                if self.on(ahead):
                    return ahead
                ahead += DAY
            ahead = min(filter(None, [leg.at_or_after(ahead) for leg in self._legs]), default=None)
        return None

    def at_or_before(self, day: date) -> date | None:
        """The last matching day up to `day`, None past the horizon."""
        first = max(day, FIRST_DAY + HORIZON) - HORIZON
        back: date | None = day
        while back is not None and first <= back <= LAST_DAY:
            for _ in range(_WEEK):
                if self.on(back):
                    return back
                back -= DAY
            back = max(filter(None, [leg.at_or_before(back) for leg in self._legs]), default=None)
        return None

    def _croniter_legs(self) -> Iterator["_Leg"]:
        windows = [special.window() for special in self._dom_specials if not isinstance(special, NthWeekday)]
        dom = self._dom.union(*windows)
        nth = [special for special in self._dow_specials if isinstance(special, NthWeekday)]
        weekdays: list[tuple[str, _DayTest]] = []
        if self._dow:
            weekdays.append((_listed(self._dow, 7), lambda day: day.isoweekday() % 7 in self._dow))
        if nth:
            text = ",".join(special.croniter() for special in nth)
            weekdays.append((text, lambda day: any(special.matches(day) for special in nth)))
        parts = [(dom if self._both else _MONTH_DAYS, text, test) for text, test in weekdays]
        if not self._both:
            parts.append((dom, "*", lambda _: True))
        for days, text, test in parts:
            if any(day.day in days and test(day) for day in self._sample_days()):
                yield _Leg(_listed(days, 31), _listed(self._months, 12), text, self._years)

    def _sample_days(self) -> Iterator[date]:
        """Days of every shape of year the rule may see, in its months."""
        years = self._years or _ALL_SHAPES
        shapes = {(isleap(year), date(year, 1, 1).weekday()): year for year in years}
        for year in shapes.values():
            for month in self._months:
                yield from (date(year, month, day + 1) for day in range(monthrange(year, month)[1]))


class _Leg:
    """One croniter expression over whole days."""

    def __init__(self, days: str, months: str, weekdays: str, years: frozenset[int] | None) -> None:
        # The shorter form where it will do: croniter is faster with it.
        text = f"0 0 {days} {months} {weekdays}"
        self._engine = croniter(
            text if years is None else f"0 {text} {_listed(years)}",
            datetime(2000, 1, 1),
            ret_type=datetime,
            day_or=False,
            max_years_between_matches=HORIZON_YEARS,
            second_at_beginning=years is not None,
        )

    def at_or_after(self, day: date) -> date | None:
        start = datetime.combine(day, time.min) - _MINUTE
        return self._ask(lambda engine: engine.get_next(start_time=start))

    def at_or_before(self, day: date) -> date | None:
        start = datetime.combine(day, time.min) + _MINUTE
        return self._ask(lambda engine: engine.get_prev(start_time=start))

    def _ask(self, question: Callable[[croniter], datetime]) -> date | None:
        try:
            return question(copy.copy(self._engine)).date()
        except (ValueError, OverflowError):  # nothing within the horizon, or the calendar's end
            return None


def _listed(values: frozenset[int], all_of: int = 0) -> str:
    return "*" if len(values) == all_of else ",".join(map(str, sorted(values)))
