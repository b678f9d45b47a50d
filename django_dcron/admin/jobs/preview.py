"""The preview beside the job's form: what the definition means as it is typed, by the very form that would save it.

Invariants:

- Nothing is written: the form is validated, and the instance it has filled in is looked at and dropped.
- An error is told in the words of a refused save; only an empty field that nobody has touched is not complained about yet.
- What cannot be told because the fields it reads are in error is left out, never guessed.
- The pieces look the same whether the page brings them or an answer does: one template each, one ``Preview``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.contrib.admin.utils import unquote
from django.core.exceptions import NON_FIELD_ERRORS, PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import render
from django.urls import URLPattern, path, reverse
from django.utils import translation
from django.utils.formats import date_format
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from django_dcron.admin.base import BaseAdmin
from django_dcron.admin.display import span
from django_dcron.admin.jobs.form import JobForm
from django_dcron.admin.jobs.groups import groups
from django_dcron.admin.jobs.policy_texts import (
    MISFIRE_FIELDS,
    OVERLAP_FIELDS,
    RETENTION_FIELDS,
    misfire_texts,
    overlap_texts,
    retention_texts,
)
from django_dcron.admin.jobs.retry_picture import RetryPicture
from django_dcron.admin.jobs.target_note import TargetNote
from django_dcron.domain.load import MINUTE
from django_dcron.exceptions import InvalidSchedule
from django_dcron.models import Job
from django_dcron.observability.lookahead import Lookahead, look_ahead

URL_NAME = "django_dcron_job_preview"
SAVE_WAS_REFUSED = "_refused"
"""Sent by a form that comes from a refused save."""

SCHEDULE_FIELDS = frozenset({"schedule", "timezone", "calendar", "calendar_policy", "starts_at", "ends_at"})
RETRY_FIELDS = frozenset(
    {"max_attempts", "retry_backoff", "retry_backoff_factor", "retry_backoff_max", "retry_jitter"}
)
ARGUMENT_FIELDS = ("args", "kwargs")


@dataclass(frozen=True, slots=True)
class FieldError:
    field: str
    """``__all__``: of the whole form."""
    label: str
    message: str


@dataclass(frozen=True, slots=True)
class Row:
    """An occurrence as the table shows it: the UTC date only where it is another one, the seconds only if any has some."""

    day: str
    time: str
    utc_day: str
    utc_time: str
    gap: str


class Preview:
    """``all_told``: every error of the form has been told, also those of fields that nobody has touched."""

    def __init__(self, form: JobForm, *, all_told: bool):
        self.form = form
        self.all_told = all_told
        self.job: Job = form.instance
        self.problem = ""
        """Why there is no lookahead, if no field says so."""

    @cached_property
    def errors(self) -> list[FieldError]:
        """In the order of the fields, what is about the whole form first."""
        return [
            FieldError(name, self._label(name), str(message))
            for name in (NON_FIELD_ERRORS, *self.form.fields)
            if name in self.form.errors and self._is_told(name)
            for message in self.form.errors[name]
        ]

    def _is_told(self, name: str) -> bool:
        if name == NON_FIELD_ERRORS or self.all_told:
            return True
        return bool(self.form[name].data) or name in self.form.changed_data

    def _label(self, name: str) -> str:
        return "" if name == NON_FIELD_ERRORS else str(capfirst(self.form.fields[name].label or name))

    @cached_property
    def ahead(self) -> Lookahead | None:
        if self._in_error(SCHEDULE_FIELDS) or not self.job.schedule:
            return None
        try:
            return look_ahead(self.job, scope=self.form.scope)
        except InvalidSchedule as error:  # of a stored job: nothing of it was typed
            self.problem = error.said(translation)
            return None

    @property
    def is_empty(self) -> bool:
        """Nothing is known of when it runs, and nothing is wrong either."""
        return not self.job.schedule and not self._in_error({"timezone"})

    @cached_property
    def rows(self) -> list[Row]:
        return list(_rows(self.ahead)) if self.ahead else []

    @property
    def is_utc(self) -> bool:
        return self.ahead is not None and self.ahead.zone in ("UTC", "Etc/UTC")

    @property
    def misfire(self) -> list[str]:
        return [] if self._in_error(MISFIRE_FIELDS) else list(misfire_texts(self.job))

    @property
    def overlap(self) -> list[str]:
        if self._in_error(OVERLAP_FIELDS):
            return []
        return list(overlap_texts(self.job, self.ahead.shortest_gap if self.ahead else None))

    @cached_property
    def retry(self) -> RetryPicture | None:
        return None if self._in_error(RETRY_FIELDS) else RetryPicture(self.job.retry)

    @property
    def retention(self) -> list[str]:
        return [] if self._in_error(RETENTION_FIELDS) else list(retention_texts(self.job))

    @property
    def note(self) -> TargetNote | None:
        return TargetNote.of(self.job.target) if not self._in_error({"target"}) else None

    @property
    def argument_problem(self) -> str:
        """What the target misses, or does not take."""
        return next((error.message for error in self.errors if error.field in ARGUMENT_FIELDS), "")

    def _in_error(self, names: Iterable[str]) -> bool:
        return any(name in self.form.errors for name in names)


def _rows(ahead: Lookahead) -> Iterable[Row]:
    clock = "H:i:s" if any(occurrence.at.second for occurrence in ahead.occurrences) else "H:i"
    for occurrence in ahead.occurrences:
        local, utc = occurrence.local.replace(tzinfo=None), occurrence.at.replace(tzinfo=None)
        yield Row(
            day=_day(local),
            time=date_format(local, clock),
            utc_day=_day(utc) if utc.date() != local.date() else "",
            utc_time=date_format(utc, clock),
            gap=_gap(occurrence.gap) if occurrence.gap else "",
        )


def _gap(gap: timedelta) -> str:
    return span(gap) if gap >= MINUTE else _("%(seconds)d s") % {"seconds": gap.total_seconds()}


def _day(local: datetime) -> str:
    return date_format(local, "D Y-m-d")


class PreviewedAdmin(BaseAdmin[Job]):
    """The job's admin with the preview, and with the form's fields in groups."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.preview_view)
        return [path("preview/", view, name=URL_NAME), *super().get_urls()]

    def preview_view(self, request: HttpRequest) -> HttpResponse:
        if not (self.has_add_permission(request) or self.has_change_permission(request)):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        job = self._stored(request)
        form_class: Any = self.get_form(request, job, change=job is not None)
        preview = Preview(form_class(request.POST, instance=job), all_told=SAVE_WAS_REFUSED in request.POST)
        return render(request, "admin/django_dcron/job/preview_answer.html", {"preview": preview})

    def _stored(self, request: HttpRequest) -> Job | None:
        """The job that is being changed; None: a new one."""
        if "job" not in request.GET:
            return None
        job = self.get_object(request, unquote(request.GET["job"]))
        if job is None:
            raise Http404
        if not self.has_change_permission(request, job):
            raise PermissionDenied
        return job

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Job | None = None,
    ) -> HttpResponse:
        form = context["adminform"]
        context["groups"] = list(groups(form))
        if add or self.has_change_permission(request, obj):
            context["preview"] = Preview(form.form, all_told=True)
            context["preview_url"] = self._preview_url(obj)
        return super().render_change_form(request, context, add, change, form_url, obj)

    def _preview_url(self, job: Job | None) -> str:
        url = reverse(f"admin:{URL_NAME}", current_app=self.admin_site.name)
        return url if job is None or job.pk is None else f"{url}?job={job.pk}"
