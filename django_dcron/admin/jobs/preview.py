"""The preview next to the job's form: it explains the definition while the user types.

Invariants:

- An error has the same text as in a refused save. An empty field that the user hasn't touched
  shows no error yet.
- The preview omits a piece whose fields have errors. It never guesses. Only the occurrences of the
  last valid schedule stay, grayed out and named as such.
- A piece looks the same in the page and in a response: both use one template and one
  ``SchedulePreview``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from django.core.exceptions import NON_FIELD_ERRORS
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import translation
from django.utils.formats import date_format
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.timezone import get_current_timezone_name, localdate, localtime

from django_dcron.admin.form_preview import PreviewedFormAdmin
from django_dcron.admin.jobs.exception_names import exception_texts
from django_dcron.admin.jobs.form import JobForm
from django_dcron.admin.jobs.form_tabs import form_tabs, open_tab
from django_dcron.admin.jobs.policy_texts import (
    MISFIRE_FIELDS,
    OVERLAP_FIELDS,
    Explanation,
    misfire_texts,
    overlap_texts,
    retention_texts,
)
from django_dcron.admin.jobs.retry_picture import RetryPicture
from django_dcron.admin.jobs.target_note import TargetNote
from django_dcron.admin.jobs.upcoming_months import UpcomingMonths, months_for
from django_dcron.diagnosis.lookahead import Lookahead, look_ahead
from django_dcron.exceptions import InvalidSchedule
from django_dcron.models import Job
from django_dcron.runs.retention import RETENTION_FIELDS
from django_dcron.schedules.sentences import schedule_of_sentence
from django_dcron.utils.durations import write_duration

SAVE_WAS_REFUSED = "_refused"
"""A form sends this name if it was rendered after a refused save."""

SCHEDULE_FIELDS = frozenset(
    {"schedule", "timezone", "calendar", "calendar_policy", "starts_at", "ends_at"}
)
RETRY_FIELDS = frozenset(
    {"max_attempts", "retry_backoff", "retry_backoff_factor", "retry_backoff_max", "retry_jitter"}
)
EXCEPTION_FIELDS = frozenset({"retry_on", "never_retry_on"})
ARGUMENT_FIELDS = ("args", "kwargs")


@dataclass(frozen=True, slots=True)
class FieldError:
    field: str
    """The name of the field, or ``__all__`` for an error of the whole form."""
    label: str
    message: str


@dataclass(frozen=True, slots=True)
class OccurrenceRow:
    """An occurrence as a row of the table.

    ``day`` and ``time`` are in the schedule's time zone, ``site_day`` and ``site_time`` in the
    site's. ``site_day`` is empty if it equals ``day``. Times have seconds only if any occurrence
    needs them.
    """

    day: str
    time: str
    site_day: str
    site_time: str
    gap: str


class SchedulePreview:
    """The data of the preview.

    With ``show_all_errors``, untouched fields have errors, too. ``request`` decides what the
    user may see of freezes and calendars.
    """

    def __init__(self, form: JobForm, request: HttpRequest, *, show_all_errors: bool):
        self.form = form
        self.request = request
        self.show_all_errors = show_all_errors
        self.job: Job = form.instance
        self.problem = ""
        """Why there is no lookahead, if the reason isn't an error of a field."""

    @cached_property
    def errors(self) -> list[FieldError]:
        """The errors of the whole form, then the errors of the fields in their order."""
        return list(self._field_errors())

    def _field_errors(self) -> Iterator[FieldError]:
        for name in (NON_FIELD_ERRORS, *self.form.fields):
            if name not in self.form.errors or not self._shows_error(name):
                continue
            if name == "kwargs" and self._inputs_have_errors:
                yield from self._input_errors()
                continue
            for message in self.form.errors[name]:
                yield FieldError(name, self._label(name), str(message))

    @property
    def _inputs_have_errors(self) -> bool:
        """Whether the errors of the raw JSON are those of the inputs for arguments."""
        arguments = self.form.arguments
        return bool(arguments and arguments.inputs and arguments.inputs.errors)

    def _input_errors(self) -> Iterator[FieldError]:
        """Yield the errors of the inputs for arguments."""
        inputs: Any = self.form.arguments and self.form.arguments.inputs
        ignores_missing = self.job._state.adding and not self.show_all_errors
        for name, messages in inputs.errors.items():
            if ignores_missing and name in inputs.missing:
                continue
            for message in messages:
                yield FieldError(inputs.add_prefix(name), name, str(message))

    def _shows_error(self, name: str) -> bool:
        if name == NON_FIELD_ERRORS or self.show_all_errors:
            return True
        return bool(self.form[name].data) or name in self.form.changed_data

    def _label(self, name: str) -> str:
        return (
            "" if name == NON_FIELD_ERRORS else str(capfirst(self.form.fields[name].label or name))
        )

    @cached_property
    def lookahead(self) -> Lookahead | None:
        if self._has_errors(SCHEDULE_FIELDS) or not self.job.schedule:
            return None
        try:
            return look_ahead(self.job, scope=self.form.scope)
        except InvalidSchedule as error:  # in the stored job, not typed by the user
            self.problem = error.translate(translation)
            return None

    @property
    def replaced_sentence(self) -> str:
        """The schedule text that replaces a typed sentence; empty if none was typed."""
        typed = str(self.form["schedule"].data or "") if self.form.is_bound else ""
        has_sentence = any(schedule_of_sentence(line, localdate()) for line in typed.splitlines())
        return self.job.schedule if has_sentence and not self._has_errors({"schedule"}) else ""

    @property
    def is_empty(self) -> bool:
        """Whether the form has no schedule and no error in the time zone."""
        return not self.job.schedule and not self._has_errors({"timezone"})

    @property
    def has_invalid_schedule(self) -> bool:
        """Whether the preview shows an error of the schedule or of a field that belongs to it."""
        return any(error.field in SCHEDULE_FIELDS for error in self.errors)

    @cached_property
    def rows(self) -> list[OccurrenceRow]:
        return list(_rows(self.lookahead)) if self.lookahead else []

    @cached_property
    def months(self) -> UpcomingMonths | None:
        """The upcoming months; None if the schedule is invalid or has no further occurrence."""
        if self.lookahead is None or not self.lookahead.occurrences:
            return None
        return months_for(self.request, self.job, self.lookahead.occurrences[0].at)

    @property
    def site_zone(self) -> str:
        """The time zone of the admin's pages; empty if the schedule has the same one."""
        site = get_current_timezone_name()
        return "" if self.lookahead is None or self.lookahead.zone == site else site

    @property
    def misfire(self) -> list[Explanation]:
        return [] if self._has_errors(MISFIRE_FIELDS) else list(misfire_texts(self.job))

    @property
    def overlap(self) -> list[Explanation]:
        if self._has_errors(OVERLAP_FIELDS):
            return []
        return list(
            overlap_texts(self.job, self.lookahead.shortest_gap if self.lookahead else None)
        )

    @cached_property
    def retry(self) -> RetryPicture | None:
        return None if self._has_errors(RETRY_FIELDS) else RetryPicture(self.job.retry)

    @property
    def exceptions(self) -> list[str]:
        """The texts about the exceptions in ``retry_on`` and ``never_retry_on``."""
        if self._has_errors(RETRY_FIELDS | EXCEPTION_FIELDS):
            return []
        return list(exception_texts(self.job.retry))

    @property
    def retention(self) -> list[Explanation]:
        return [] if self._has_errors(RETENTION_FIELDS) else list(retention_texts(self.job))

    @property
    def note(self) -> TargetNote | None:
        return TargetNote.of(self.job.target) if not self._has_errors({"target"}) else None

    @property
    def json_inputs(self) -> list[SafeString]:
        """The inputs of the raw JSON, which replace those in the page."""
        attrs: dict[str, str | bool] = {"hx-swap-oob": "true"}
        return [self.form[name].as_widget(attrs=attrs) for name in ARGUMENT_FIELDS]

    @property
    def argument_problem(self) -> str:
        """The error in the arguments: what the target requires or doesn't accept."""
        return next((error.message for error in self.errors if error.field in ARGUMENT_FIELDS), "")

    def _has_errors(self, names: Iterable[str]) -> bool:
        return any(name in self.form.errors for name in names)


def _rows(lookahead: Lookahead) -> Iterable[OccurrenceRow]:
    clock = "H:i:s" if any(occurrence.at.second for occurrence in lookahead.occurrences) else "H:i"
    for occurrence in lookahead.occurrences:
        local = occurrence.local.replace(tzinfo=None)
        on_site = localtime(occurrence.at).replace(tzinfo=None)
        yield OccurrenceRow(
            day=_day(local),
            time=date_format(local, clock),
            site_day=_day(on_site) if on_site.date() != local.date() else "",
            site_time=date_format(on_site, clock),
            gap=write_duration(occurrence.gap, " ") if occurrence.gap else "",
        )


def _day(local: datetime) -> str:
    return date_format(local, "D Y-m-d")


class PreviewedAdmin(PreviewedFormAdmin[Job]):
    """The job's admin with the preview and with the form in tabs."""

    preview_url_name = "django_dcron_job_preview"
    preview_key = "job"

    def render_preview(self, request: HttpRequest, form: Any) -> HttpResponse:
        preview = SchedulePreview(form, request, show_all_errors=SAVE_WAS_REFUSED in request.POST)
        return render(request, "admin/django_dcron/job/preview_response.html", {"preview": preview})

    def add_form_context(
        self, request: HttpRequest, context: dict[str, Any], obj: Job | None
    ) -> None:
        super().add_form_context(request, context, obj)
        form = context["adminform"]
        has_overview = obj is not None and not context.get("is_popup")
        context["tabs"] = tabs = form_tabs(form)
        context["open_tab"] = open_tab(tabs, form, has_overview=has_overview)
        if obj is None or self.has_change_permission(request, obj):
            context["preview"] = SchedulePreview(form.form, request, show_all_errors=True)
            context["preview_url"] = self.preview_url(obj)
