"""The months below a calendar's form: the days that the typed dates exclude.

Invariants:

- The months are computed by the code that the scheduler uses. Invalid dates have no months.
- An excluded day is recognizable without its color.
"""

from __future__ import annotations

import calendar
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.dates import WEEKDAYS, WEEKDAYS_ABBR
from django.utils.formats import date_format, get_format
from django.utils.timezone import localdate

from django_dcron.admin.form_preview import PreviewedFormAdmin
from django_dcron.db import clock
from django_dcron.exceptions import InvalidCalendar
from django_dcron.models import Calendar
from django_dcron.models.calendar import read_dates

MONTHS = 12


@dataclass(frozen=True, slots=True)
class MonthDay:
    number: int
    is_in_month: bool
    is_excluded: bool
    is_today: bool
    times: str
    """The excluded times of a day that is partly excluded, such as 22:00-24:00."""


@dataclass(frozen=True, slots=True)
class Month:
    name: str
    weeks: tuple[tuple[MonthDay, ...], ...]


class CalendarPreview:
    """The months for ``dates``, or the errors in it."""

    def __init__(self, dates: str, errors: list[str]):
        self.errors = errors
        self.months: list[Month] = []
        with suppress(InvalidCalendar):  # stored by an earlier release, or without validation
            self.months = [] if errors or not dates.strip() else list(_months(dates))

    @property
    def weekdays(self) -> list[tuple[Any, Any]]:
        """The short and long names of the weekdays, in the order of the active language."""
        first = _first_weekday()
        days = [(first + number) % 7 for number in range(7)]
        return [(WEEKDAYS_ABBR[day], WEEKDAYS[day]) for day in days]

    @property
    def excludes_no_day(self) -> bool:
        days = (day for month in self.months for week in month.weeks for day in week)
        return bool(self.months) and not any(day.is_excluded or day.times for day in days)

    @property
    def has_times(self) -> bool:
        """Whether some days are partly excluded."""
        return any(day.times for month in self.months for week in month.weeks for day in week)


def _months(text: str) -> Iterator[Month]:
    dates, today = read_dates(text), localdate(clock.now())
    grid = calendar.Calendar(_first_weekday())
    for number in range(MONTHS):
        years, month = divmod(today.month - 1 + number, 12)
        first = date(today.year + years, month + 1, 1)
        weeks = tuple(
            tuple(_day(day, first, today, dates) for day in week)
            for week in grid.monthdatescalendar(first.year, first.month)
        )
        yield Month(date_format(first, "YEAR_MONTH_FORMAT"), weeks)


def _day(day: date, first: date, today: date, dates: Any) -> MonthDay:
    is_in_month = day.month == first.month
    is_excluded = is_in_month and dates.excludes(day)
    times = "" if is_excluded or not is_in_month else _format_times(dates.excluded_times(day))
    return MonthDay(day.day, is_in_month, is_excluded, day == today, times)


def _format_times(intervals: Sequence[tuple[int, int]]) -> str:
    """Format intervals in seconds of the day, which are whole minutes."""
    minutes = ([second // 60 for second in interval] for interval in intervals)
    return ", ".join("-".join(f"{at // 60:02}:{at % 60:02}" for at in pair) for pair in minutes)


def _first_weekday() -> int:
    """Return the first day of the week as Python counts: Monday is 0. Django's Sunday is 0."""
    return (int(get_format("FIRST_DAY_OF_WEEK")) - 1) % 7


class PreviewedCalendarAdmin(PreviewedFormAdmin[Calendar]):
    preview_url_name = "django_dcron_calendar_preview"
    preview_key = "calendar"

    def render_preview(self, request: HttpRequest, form: Any) -> HttpResponse:
        context = {"preview": _preview_of(form)}
        return render(request, "admin/django_dcron/calendar/months.html", context)

    def add_form_context(
        self, request: HttpRequest, context: dict[str, Any], obj: Calendar | None
    ) -> None:
        super().add_form_context(request, context, obj)
        if obj is not None and not self.has_change_permission(request, obj):
            context["preview"] = CalendarPreview(obj.dates, [])
            return
        context["preview"] = _preview_of(context["adminform"].form)
        context["preview_url"] = self.preview_url(obj)


def _preview_of(form: Any) -> CalendarPreview:
    errors = [str(message) for message in form.errors.get("dates", ())]
    if form.is_bound:
        return CalendarPreview(form.cleaned_data.get("dates", ""), errors)
    return CalendarPreview(form.instance.dates, [])
