"""Calendars: edited here, through ``control``. What a calendar excludes is told as it is read; jobs name it in their own form.

The form carries the version it was rendered of, as a job's does: what somebody else saved in between is not overwritten unseen.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import date
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.utils.formats import date_format
from django.utils.html import format_html_join
from django.utils.timezone import localdate
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_dcron import control
from django_dcron.admin.change_log import LoggedAdmin
from django_dcron.admin.conflicts import VersionedAdmin
from django_dcron.admin.display import EMPTY
from django_dcron.admin.jobs.form import json_input
from django_dcron.admin.lists.base import ListAdmin
from django_dcron.admin.visibility import scope_of
from django_dcron.domain import clock
from django_dcron.domain.days import DAY
from django_dcron.exceptions import Conflict, InvalidCalendar
from django_dcron.models import Calendar, Job
from django_dcron.models.calendar import read_dates

if TYPE_CHECKING:
    CalendarModelForm = forms.ModelForm[Calendar]
else:
    CalendarModelForm = forms.ModelForm

SHOWN = 20
LOOKED_AT = 400
"""Days: a year and a little."""


class CalendarForm(CalendarModelForm):
    seen_version = forms.IntegerField(required=False, widget=forms.HiddenInput)

    class Meta:
        model = Calendar
        fields = ("name", "description", "dates")
        widgets = {
            "dates": json_input(rows=10),
            "description": forms.Textarea({"rows": 3, "class": "vLargeTextField"}),
        }

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if not self.instance._state.adding:
            self.initial["seen_version"] = self.instance.version

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if not self.instance._state.adding and cleaned.get("seen_version") != self.instance.version:
            text = gettext(
                "This calendar was changed meanwhile by someone else, so nothing was saved. Its dates are now: %(dates)s. If you save "
                "again, yours replace them."
            )
            self.add_error(None, text % {"dates": ", ".join(self.instance.dates.splitlines())})
            sent = self.data.copy()  # type: ignore[attr-defined]  # a QueryDict
            sent[self.add_prefix("seen_version")] = str(self.instance.version)
            self.data = sent
        return cleaned


@admin.register(Calendar)
class CalendarAdmin(VersionedAdmin[Calendar], LoggedAdmin[Calendar], ListAdmin[Calendar]):
    form = CalendarForm
    list_display = ("name", "description", "number_of_jobs")
    ordering = ("name",)  # of the model alone would be lost by the count of jobs
    search_fields = ("name", "description")
    searched = _("A part of the name or of the description.")
    nothing_yet = _("No calendars yet. Add one here, and name it in the form of a job.")
    fields = ("name", "description", "dates", "next_dates", "seen_version")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Calendar]:
        scope = scope_of(request, self.admin_site)
        seen = Q(jobs__in=scope.keys(Job)) if scope.narrows(Job) else None
        return super().get_queryset(request).annotate(number_of_jobs=Count("jobs", filter=seen))

    def get_fields(self, request: HttpRequest, obj: Calendar | None = None) -> tuple[str, ...]:
        return ("name", "description", "dates", "seen_version") if obj is None else self.fields

    def get_readonly_fields(self, request: HttpRequest, obj: Calendar | None = None) -> tuple[str, ...]:
        return ("next_dates",) if obj is None else ("name", "next_dates")

    @admin.display(description=_("jobs"), ordering="number_of_jobs")
    def number_of_jobs(self, calendar: Calendar) -> int:
        return int(calendar.number_of_jobs)  # type: ignore[attr-defined]  # annotated

    @admin.display(description=_("next excluded dates"))
    def next_dates(self, calendar: Calendar) -> str:
        dates = _next_dates(calendar)
        return (
            format_html_join(", ", "<span>{}</span>", ((date_format(day, "D Y-m-d"),) for day in dates))
            or EMPTY
        )

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Of the jobs that name a calendar, and so keep it, those that the user may not see are only counted."""
        lines, counts, lacking, protected = super().get_deleted_objects(objs, request)
        scope = scope_of(request, self.admin_site)
        if not protected or not scope.narrows(Job):
            return lines, counts, lacking, protected
        naming = Job.objects.filter(calendar__in=list(objs))
        seen = list(scope.of_jobs(naming, "pk"))
        protected = [gettext("Job: %(job)s") % {"job": job} for job in seen]
        if hidden := naming.count() - len(seen):
            text = ngettext(
                "%(count)d job that you may not see", "%(count)d jobs that you may not see", hidden
            )
            protected.append(text % {"count": hidden})
        return lines, counts, lacking, protected

    def save_model(self, request: HttpRequest, obj: Calendar, form: CalendarForm, change: bool) -> None:
        control.save_calendar(obj, expected_version=form.cleaned_data["seen_version"] if change else None)
        if not scope_of(request, self.admin_site).sees(obj):  # rolled back
            raise PermissionDenied

    def delete_model(self, request: HttpRequest, obj: Calendar) -> None:
        with suppress(Conflict):  # somebody else has deleted it meanwhile: that is what was asked for
            control.delete_calendar(obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Calendar]) -> None:
        for calendar in queryset:
            self.delete_model(request, calendar)


def _next_dates(calendar: Calendar) -> list[date]:
    """As it is stored; none of one that cannot be read."""
    try:
        dates = read_dates(calendar.dates)
    except InvalidCalendar:
        return []
    today = localdate(clock.now())
    coming = (today + number * DAY for number in range(LOOKED_AT))
    return [day for day in coming if dates.excludes(day)][:SHOWN]
