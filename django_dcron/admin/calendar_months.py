"""The months below a calendar's form: the days that the typed dates exclude.

Invariants:

- The months are computed by the code that the scheduler uses. Invalid dates have no months.
- A hidden text names the holiday or the entry that excludes a day.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import date
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.timezone import localdate

from django_dcron.admin.form_preview import PreviewedFormAdmin
from django_dcron.admin.month_grid import MonthDay, MonthGrid, exclusion_note, exclusion_reasons
from django_dcron.db import clock
from django_dcron.exceptions import InvalidCalendar
from django_dcron.models import Calendar
from django_dcron.models.calendar import read_dates

MONTHS = 12


class CalendarPreview:
    """The months for ``dates``, or the errors in it."""

    def __init__(self, dates: str, errors: list[str]):
        self.errors = errors
        self.grid: MonthGrid | None = None
        with suppress(InvalidCalendar):  # stored by an earlier release, or without validation
            self.grid = None if errors or not dates.strip() else _grid(dates)


def _grid(text: str) -> MonthGrid:
    dates, reasons_on, today = read_dates(text), exclusion_reasons(text), localdate(clock.now())

    def day_of(day: date) -> MonthDay:
        excluded = dates.excluded_times(day)
        note = exclusion_note(excluded, reasons_on(day)) if excluded else ""
        is_excluded = dates.excludes(day)
        return MonthDay(
            day.day,
            is_today=day == today,
            is_excluded=is_excluded,
            is_partly_excluded=bool(excluded) and not is_excluded,
            notes=(note,) if note else (),
        )

    return MonthGrid(today, MONTHS, day_of)


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
