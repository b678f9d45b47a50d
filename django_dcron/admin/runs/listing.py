"""The list of runs: what became of each occurrence, found by filters that stay fast over a million rows."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Prefetch, Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_dcron.admin.display import EMPTY, may_view, moment, quiet, span, state_badge
from django_dcron.admin.lists.base import HistoryAdmin, words_of
from django_dcron.admin.lists.export import ExportedAdmin, fields_of
from django_dcron.admin.lists.filters import JobFilter, NamespaceFilter, TagFilter, as_uuid, runs_of, titled
from django_dcron.admin.lists.time_filter import TimeFilter
from django_dcron.admin.visibility import is_withheld, of_visible_jobs
from django_dcron.domain import clock
from django_dcron.domain.lifecycle import UNFINISHED, State, Trigger
from django_dcron.models import Job, Run
from django_dcron.observability.lengths import duration, lateness
from django_dcron.targets import redacted

BY_JOBS: tuple[Any, ...] = (("job", JobFilter), NamespaceFilter, TagFilter)
"""Their choices are of all jobs, also of those that never ran."""
TRIGGER_TITLE = gettext_lazy("trigger, of the 100,000 latest runs")


class RunListAdmin(HistoryAdmin[Run], ExportedAdmin[Run]):
    list_display = ("scheduled", "job_name", "state_and_reason", "started", "took")
    list_display_links = ("scheduled",)
    list_filter = ("state", TimeFilter, *BY_JOBS, ("trigger", titled(TRIGGER_TITLE)))
    search_fields = ("job__name", "job__namespace")
    searched = gettext_lazy("A job's name, of at most eight words, or a run's whole id.")
    ordering = ("-scheduled_at", "-pk")  # an index of the table, read backwards
    quick_links = (
        (gettext_lazy("Failed in the last 24 hours"), "state__exact=failed&when=24h"),
        (gettext_lazy("Missed in the last 24 hours"), "state__exact=missed&when=24h"),
        (gettext_lazy("Running"), "state__exact=running"),
        (gettext_lazy("Waiting"), "state__exact=waiting"),
    )
    nothing_yet = gettext_lazy(
        "No runs yet. One appears when an occurrence of a job comes near while a node (manage.py runcron) is up, or when "
        "somebody runs a job now."
    )
    exported = [
        ("id", lambda run: str(run.pk)),
        ("namespace", lambda run: run.job.namespace),
        ("job", lambda run: run.job.name),
        *fields_of(Run, "scheduled_at", "state", "reason", "trigger", "attempt"),
        *fields_of(Run, "due_at", "claimed_at", "queued_at", "started_at", "finished_at"),
        ("lateness_seconds", lateness),
        ("duration_seconds", lambda run: duration(run) if run.finished_at else None),
        *fields_of(Run, "missed_before", "missed_from"),
        ("args", lambda run: redacted(run.args)),
        ("kwargs", lambda run: redacted(run.kwargs)),
        *fields_of(Run, "idempotency_key"),
        ("rerun_of", lambda run: run.rerun_of_id and str(run.rerun_of_id)),
        *fields_of(Run, "node", "cancel_requested_at"),
    ]

    @admin.display(description=gettext_lazy("scheduled"))
    def scheduled(self, run: Run) -> str:
        by = "" if run.trigger == Trigger.SCHEDULE else run.get_trigger_display()
        return format_html("{}{}", moment(run.scheduled_at, near=clock.now()), quiet(by))

    @admin.display(description=gettext_lazy("job"))
    def job_name(self, run: Run) -> str:
        return str(run.job)

    @admin.display(description=gettext_lazy("state"))
    def state_and_reason(self, run: Run) -> str:
        most = max(run.attempt, run.job.max_attempts)
        tried = _("attempt %(attempt)d of %(most)d") % {"attempt": run.attempt, "most": most}
        reason = Truncator(run.reason).chars(100)
        return format_html("{}{}{}", state_badge(run.state), quiet(tried if most > 1 else ""), quiet(reason))

    @admin.display(description=gettext_lazy("started"))
    def started(self, run: Run) -> str:
        """How late it was; or when it is due, if it waits for its first or next attempt."""
        late = lateness(run)
        if late is not None:
            started = moment(run.started_at, near=run.scheduled_at)
            return format_html("{}{}", started, quiet(_("%(time)s late") % {"time": span(late)}))
        if State(run.state) in UNFINISHED:
            return quiet(format_html(_("due {}"), moment(run.due_at, near=run.scheduled_at)))
        return EMPTY

    @admin.display(description=gettext_lazy("duration"))
    def took(self, run: Run) -> str:
        if run.started_at is None or run.finished_at is None:
            return span(duration(run))
        until = format_html(_("until {}"), moment(run.finished_at, near=run.scheduled_at))
        return format_html("{}{}", span(duration(run)), quiet(until))

    def get_list_filter(self, request: HttpRequest) -> Any:
        offered = super().get_list_filter(request)
        if may_view(request, Job, self.admin_site):
            return offered
        return [each for each in offered if each not in BY_JOBS]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        """The jobs by a query of their own: with a join a database may start from the jobs, and sort all their runs."""
        rows = super().get_queryset(request).prefetch_related("job")
        return of_visible_jobs(rows, "job", request, self.admin_site)

    def listed(self, rows: QuerySet[Run]) -> QuerySet[Run]:
        jobs = Prefetch("job", Job.objects.defer("args", "kwargs", "declared"))
        return rows.defer("args", "kwargs").prefetch_related(None).prefetch_related(jobs)

    def has_view_permission(self, request: HttpRequest, obj: Run | None = None) -> bool:
        withheld = obj is not None and is_withheld(request, obj.job, self.admin_site)
        return super().has_view_permission(request, obj) and not withheld

    def exported_rows(self, request: HttpRequest) -> QuerySet[Run]:
        rows = super().exported_rows(request).prefetch_related(None)
        return rows.prefetch_related(Prefetch("job", Job.objects.only("namespace", "name")))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Run], search_term: str
    ) -> tuple[QuerySet[Run], bool]:
        if not search_term.strip():
            return queryset, False
        run_id = as_uuid(search_term)
        if run_id is not None:
            return queryset.filter(pk=run_id), False
        named = Job.objects.all()
        for word in words_of(search_term):
            named = named.filter(Q(name__icontains=word) | Q(namespace__icontains=word))
        return runs_of(queryset, named), False
