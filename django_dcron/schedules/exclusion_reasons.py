"""Name the entries of a calendar that exclude a day or a part of it.

Invariants:

- An entry is named by the public holiday on that day, or else by the comment in its line, or else
  by its own text.
- The entries for times are named only if no entry excludes the whole date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date

from django_dcron.schedules.calendar_text import CalendarEntry
from django_dcron.schedules.days import DAY
from django_dcron.schedules.times_of_day import merge_intervals, outside

HolidayName = Callable[[str, str, date], str]
"""Returns the name of the holiday of a country and subdivision on a day, or an empty string."""


@dataclass(frozen=True, slots=True)
class ExclusionReasons:
    names: tuple[str, ...] = ()
    """The names of the entries, each once, in the order of the text."""
    has_times_outside: bool = False
    """Whether the day has times outside the entries with ``only``."""


NO_REASONS = ExclusionReasons()


def reasons_on(
    day: date, entries: Iterable[CalendarEntry], holiday_name: HolidayName
) -> ExclusionReasons:
    """Return why the calendar with these entries excludes the day or times of it."""
    entries = tuple(entries)
    whole = [each for each in entries if each.window is None and each.dates.has_entry_for(day)]
    if whole:
        return ExclusionReasons(_names(whole, day, holiday_name))
    timed = [each for each in entries if not each.is_only and _has_time_on(each, day)]
    only = [each.window for each in entries if each.is_only and each.window]
    opened = merge_intervals(part for window in only for part in window.intervals(day))
    return ExclusionReasons(
        _names(timed, day, holiday_name), has_times_outside=bool(only and outside(opened))
    )


def _has_time_on(entry: CalendarEntry, day: date) -> bool:
    return entry.window is not None and any(entry.window.intervals(day))


def _names(
    entries: Iterable[CalendarEntry], day: date, holiday_name: HolidayName
) -> tuple[str, ...]:
    def names() -> Iterator[str]:
        for entry in entries:
            # A time may have begun on the day before.
            begun = day if entry.dates.has_entry_for(day) else day - DAY
            holiday = entry.country and holiday_name(entry.country, entry.part, begun)
            yield holiday or entry.comment or entry.text

    return tuple(dict.fromkeys(names()))
