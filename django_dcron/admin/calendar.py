"""The admin of calendars, which are edited through ``control``.

Invariants:

- The page lists the next excluded dates as the scheduler reads them from the stored text.
- The form carries the version that it was rendered from. A save never silently overwrites another
  user's change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.utils import translation
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.timezone import get_default_timezone, localdate
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_dcron import control
from django_dcron.admin.audit_log import AuditedAdmin
from django_dcron.admin.calendar_months import PreviewedCalendarAdmin
from django_dcron.admin.conflicts import MultilineFormField, VersionedForm
from django_dcron.admin.display import EMPTY, preformatted, render_muted
from django_dcron.admin.json_input import json_textarea
from django_dcron.admin.lists.base import ListAdmin
from django_dcron.admin.month_grid import exclusion_reasons
from django_dcron.admin.named_rows import NamedRowAdmin
from django_dcron.admin.visibility import admin_scope
from django_dcron.db import clock
from django_dcron.exceptions import InvalidCalendar
from django_dcron.models import Calendar, Job
from django_dcron.models.calendar import read_dates
from django_dcron.schedules import public_holidays
from django_dcron.schedules.days import DAY
from django_dcron.utils.bounded_text import first_distinct

if TYPE_CHECKING:
    from django_dcron.contrib.ics import OmittedEvent

DATES_SHOWN = 20
ENTRIES_LISTED = PERIODS_LISTED = 3
"""The number of entries, and of excluded periods, in the list of calendars."""
REASONS_LISTED = WARNINGS_SHOWN = 5
"""The number of distinct reasons in a text, and of omitted events that have their own warnings."""
DAYS_SEARCHED = 400
"""The number of days in which excluded dates are searched: slightly more than a year."""


class CalendarForm(VersionedForm[Calendar]):
    ics = forms.FileField(
        label=_("iCalendar file"),
        required=False,
        allow_empty_file=True,
        help_text=_(
            "An .ics file, whose events of the next %(years)d years are added to the entries above "
            "when you save."
        ),
        widget=forms.FileInput({"accept": ".ics,text/calendar"}),
    )
    omitted: tuple[OmittedEvent, ...] = ()
    """Events of the file that a calendar can't express."""

    class Meta:
        model = Calendar
        fields = ("name", "description", "dates")
        field_classes = {"description": MultilineFormField}
        widgets = {
            "dates": json_textarea(rows=10),
            "description": forms.Textarea({"rows": 3, "class": "vLargeTextField"}),
        }

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        # The form has no such field for users who may only view the calendar.
        if "dates" in self.fields:
            from django_dcron.contrib.ics import YEARS_READ

            self.fields["ics"].help_text %= {"years": YEARS_READ}
            if not public_holidays.is_installed():
                note = gettext(
                    "Public holidays: not installed on this site (pip install "
                    "django-dcron[holidays])."
                )
                self.fields["dates"].help_text = f"{self.fields['dates'].help_text} {note}"
            # The file may contain the only entries.
            self.fields["dates"].required = not self.files.get("ics")

    def _add_events(self, cleaned: dict[str, Any]) -> None:
        """Add the events of the uploaded file to the entries."""
        from django_dcron.contrib.ics import LONGEST_FILE, YEARS_READ, read_ics, years_later

        today = localdate(clock.now())
        # After a lost race, ``changeform_view`` validates a second form with the same file.
        cleaned["ics"].seek(0)
        try:
            read = read_ics(
                cleaned["ics"].read(LONGEST_FILE + 1),
                zone=get_default_timezone(),
                first=today,
                last=years_later(today, YEARS_READ),
            )
        except InvalidCalendar as error:
            self.add_error("ics", error.translate(translation))
            return
        self.omitted = read.omitted
        present = cleaned.get("dates", "").splitlines()
        added = [line for line in read.dates.splitlines() if line not in present]
        cleaned["dates"] = "\n".join([*present, *added])
        if not cleaned["dates"]:
            reasons = (each.reason.translate(translation) for each in read.omitted)
            text = gettext("No event of the file can be converted to calendar entries: %(reasons)s")
            listed = "; ".join(first_distinct(reasons, REASONS_LISTED))
            self.add_error("ics", text % {"reasons": listed})

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if cleaned.get("ics"):
            self._add_events(cleaned)
        return cleaned

    def conflict(self) -> ValidationError:
        params = {"dates": ", ".join(self.instance.dates.splitlines())}
        # Browsers submit CRLF line endings. The stored text may have LF.
        submitted = self.cleaned_data.get("description", "").splitlines()
        if submitted == self.instance.description.splitlines():
            text = gettext(
                "This calendar was changed in another window or by someone else, so your changes "
                "were not saved. Its dates are now: %(dates)s. Save again to replace them with "
                "yours."
            )
        else:
            text = gettext(
                "This calendar was changed in another window or by someone else, so your changes "
                "were not saved. Its stored description is “%(description)s”, and its stored dates "
                "are: %(dates)s. Save again to replace them with your values."
            )
            params["description"] = self.instance.description
        return ValidationError(text, code="conflict", params=params)


@admin.register(Calendar)
class CalendarAdmin(
    NamedRowAdmin[Calendar], PreviewedCalendarAdmin, AuditedAdmin[Calendar], ListAdmin[Calendar]
):
    form = CalendarForm
    field_of_jobs = "calendar"
    list_display = ("name", "entries", "next_periods", "number_of_jobs")
    ordering = ("name",)  # the annotation with the number of jobs drops the model's ordering
    search_fields = ("name", "description")
    search_note = _("Searches names and descriptions.")
    empty_text = _("No calendars yet. Add one here, then select it in a job.")
    fields = ("name", "description", "dates", "ics", "next_dates", "seen_version")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Calendar]:
        scope = admin_scope(request, self.admin_site)
        visible = Q(jobs__in=scope.keys(Job)) if scope.narrows(Job) else None
        return super().get_queryset(request).annotate(number_of_jobs=Count("jobs", filter=visible))

    def get_fields(self, request: HttpRequest, obj: Calendar | None = None) -> tuple[str, ...]:
        from django_dcron.contrib.ics import can_read_ics

        without = {"next_dates"} if obj is None else set()
        may_edit = self.has_change_permission(request, obj) if obj else True
        if not may_edit or not can_read_ics():
            without.add("ics")
        return tuple(name for name in self.fields if name not in without)

    def get_readonly_fields(
        self, request: HttpRequest, obj: Calendar | None = None
    ) -> tuple[str, ...]:
        return ("next_dates",) if obj is None else ("name", "next_dates")

    @admin.display(description=_("jobs"), ordering="number_of_jobs")
    def number_of_jobs(self, calendar: Calendar) -> int:
        return int(calendar.number_of_jobs)  # type: ignore[attr-defined]  # annotated

    @admin.display(description=_("entries"))
    def entries(self, calendar: Calendar) -> str:
        lines = calendar.dates.splitlines()
        more = len(lines) - ENTRIES_LISTED
        text = gettext("… and %(count)d more") % {"count": more} if more > 0 else ""
        return format_html(
            "{}{}{}",
            render_muted(calendar.description),
            preformatted("\n".join(lines[:ENTRIES_LISTED])),
            render_muted(text),
        )

    @admin.display(description=_("next excluded dates"))
    def next_periods(self, calendar: Calendar) -> str:
        reasons_on = exclusion_reasons(calendar.dates)
        first, last = _searched_dates()
        shown = []
        for days in islice(_periods(_excluded_dates(calendar, first, last)), PERIODS_LISTED):
            names = chain.from_iterable(reasons_on(day).names for day in days)
            reasons = ", ".join(first_distinct(names, REASONS_LISTED))
            period = _period_text(days, has_open_end=days[-1] == last)
            shown.append(format_html("<div>{}</div>{}", period, render_muted(reasons)))
        return format_html_join("", "{}", ((each,) for each in shown)) or EMPTY

    @admin.display(description=_("next excluded dates"))
    def next_dates(self, calendar: Calendar) -> str:
        dates = islice(_excluded_dates(calendar, *_searched_dates()), DATES_SHOWN)
        return (
            format_html_join(
                ", ", "<span>{}</span>", ((date_format(day, "D Y-m-d"),) for day in dates)
            )
            or EMPTY
        )

    def save_row(self, row: Calendar, expected_version: int | None) -> None:
        control.save_calendar(row, expected_version=expected_version)

    def delete_row(self, row: Calendar) -> None:
        control.delete_calendar(row)

    def save_model(
        self, request: HttpRequest, obj: Calendar, form: CalendarForm, change: bool
    ) -> None:
        super().save_model(request, obj, form, change)
        for text in _omission_warnings(form.omitted):
            self.message_user(request, text, messages.WARNING)


def _omission_warnings(omitted: Sequence[OmittedEvent]) -> Iterator[str]:
    """Name the first omitted events of the file, and count the others."""
    for event in omitted[:WARNINGS_SHOWN]:
        text = gettext("Event %(event)s of the file was omitted: %(reason)s")
        name = event.name or gettext("without a title")
        yield text % {"event": name, "reason": event.reason.translate(translation)}
    if (more := len(omitted) - WARNINGS_SHOWN) > 0:
        text = ngettext(
            "… and %(count)d more event was omitted",
            "… and %(count)d more events were omitted",
            more,
        )
        yield text % {"count": more}


def _searched_dates() -> tuple[date, date]:
    """Return the first and the last date of the search for excluded dates."""
    today = localdate(clock.now())
    return today, today + (DAYS_SEARCHED - 1) * DAY


def _excluded_dates(calendar: Calendar, first: date, last: date) -> Iterator[date]:
    """Yield the excluded dates from ``first`` to ``last``, or none if the calendar is invalid."""
    try:
        dates = read_dates(calendar.dates)
    except InvalidCalendar:
        return
    day = first
    while day <= last:
        if dates.excludes(day):
            yield day
        day += DAY


def _periods(days: Iterable[date]) -> Iterator[list[date]]:
    """Group ascending dates into periods of consecutive dates."""
    period: list[date] = []
    for day in days:
        if period and day - period[-1] > DAY:
            yield period
            period = []
        period.append(day)
    if period:
        yield period


def _period_text(days: Sequence[date], *, has_open_end: bool) -> str:
    first, last = (date_format(day, "D Y-m-d") for day in (days[0], days[-1]))
    if has_open_end:  # the search ended within the period
        last = "…"
    return first if first == last else f"{first} \N{EN DASH} {last}"
