"""The list of runs, with filters that stay fast in a table of a million rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.db.models import OuterRef, Prefetch, Q, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from django_dcron.admin.display import (
    EMPTY,
    duration_or_empty,
    link,
    may_view,
    render_muted,
    render_time,
    state_badge,
)
from django_dcron.admin.lists.base import HistoryAdmin, rows_to_show, search_words
from django_dcron.admin.lists.export import ExportedAdmin, fields_of
from django_dcron.admin.lists.filters import (
    NamespaceFilter,
    TagFilter,
    filter_by_jobs,
    titled_filter,
)
from django_dcron.admin.lists.job_filter import SUGGESTIONS_URL, JobListFilter, suggest_jobs
from django_dcron.admin.lists.saved_filters import SavedFiltersAdmin
from django_dcron.admin.lists.text_filter import ReasonFilter
from django_dcron.admin.lists.time_filter import TimeFilter
from django_dcron.admin.runs.log_filter import (
    LogFilter,
    RunChangeList,
    is_action_on_ticked_rows,
    searches_logs,
)
from django_dcron.admin.visibility import admin_scope, filter_by_visible_jobs, is_hidden
from django_dcron.db import clock
from django_dcron.db.now import UtcNow
from django_dcron.diagnosis.run_durations import (
    first_start_delay,
    run_duration,
    start_delay,
    total_duration,
)
from django_dcron.diagnosis.run_history import first_attempts
from django_dcron.diagnosis.run_ids import id_range_in, id_range_of_text
from django_dcron.models import Attempt, Job, Run
from django_dcron.models.run import RunQuerySet, claimed_ahead
from django_dcron.policies.lifecycle import UNFINISHED, State, Trigger
from django_dcron.targets import redact_secrets
from django_dcron.utils.bounded_text import with_ellipsis

JOB_FILTERS: tuple[Any, ...] = (("job", JobListFilter), NamespaceFilter, TagFilter)
"""Filters whose choices name all jobs, including jobs without runs."""
SHOWN = "shown"
TRIGGER_TITLE = gettext_lazy("trigger (latest 100,000 runs)")


class TriggerFilter(titled_filter(TRIGGER_TITLE)):  # type: ignore[misc]  # made at run time
    """A filter by the trigger that the list shows."""

    def queryset(self, request: HttpRequest, queryset: RunQuerySet) -> RunQuerySet:
        triggers = self.used_parameters.get(self.lookup_kwarg)
        if not triggers:
            return super().queryset(request, queryset)  # type: ignore[no-any-return]
        return queryset.shown_as(*triggers)


class UpcomingFilter(admin.SimpleListFilter):
    """Hide the runs that nodes have claimed ahead, unless the user asks for them.

    Otherwise, they fill the first page in the seconds before many jobs are due. A filter by the
    state *pending* and a search for the id of a run also ask for them.
    """

    title = gettext_lazy("upcoming runs")
    parameter_name = "upcoming"
    template = "admin/django_dcron/closed_filter.html"

    def __init__(self, request: HttpRequest, params: Any, model: Any, model_admin: Any):
        super().__init__(request, params, model, model_admin)
        states = {*request.GET.getlist("state__exact"), *request.GET.getlist("state__in")}
        self._is_unused = (
            any(State.PENDING in each.split(",") for each in states)
            or id_range_of_text(request.GET.get(SEARCH_VAR, "")) is not None
            or is_action_on_ticked_rows(request)
        )

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [(SHOWN, _("Shown"))]

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        default, *others = super().choices(changelist)
        yield {**default, "display": _("Hidden")}
        yield from others

    def queryset(self, request: HttpRequest, queryset: QuerySet[Run]) -> QuerySet[Run]:
        if self.value() == SHOWN or self._is_unused:
            return queryset
        return queryset.exclude(claimed_ahead(UtcNow()))


class RunListAdmin(SavedFiltersAdmin[Run], HistoryAdmin[Run], ExportedAdmin[Run]):
    list_display = ("scheduled", "job_link", "state_and_reason", "started", "took")
    list_display_links = ("scheduled",)
    list_filter = (
        "state",
        TimeFilter,
        *JOB_FILTERS,
        ReasonFilter,
        LogFilter,
        ("trigger", TriggerFilter),
        UpcomingFilter,
    )
    search_fields = ("job__name", "job__namespace")
    search_note = gettext_lazy("Enter up to eight words of a job name, or the ID of a run.")
    ordering = ("-scheduled_at", "-pk")  # matches an index of the table, read backwards
    quick_links = (
        (gettext_lazy("Failed in the last 24 hours"), "state__exact=failed&when=24h"),
        (gettext_lazy("Missed in the last 24 hours"), "state__exact=missed&when=24h"),
        (gettext_lazy("Running"), "state__exact=running"),
        (gettext_lazy("Waiting"), "state__exact=waiting"),
    )
    empty_text = gettext_lazy(
        "No runs yet. A run appears here when it is due if a node (manage.py runcron) is "
        "running, or when someone runs a job now."
    )
    exported = [
        ("id", lambda run: str(run.pk)),
        ("namespace", lambda run: run.job.namespace),
        ("job", lambda run: run.job.name),
        *fields_of(Run, "scheduled_at", "state", "reason"),
        ("trigger", lambda run: run.shown_trigger),
        *fields_of(Run, "attempt"),
        *fields_of(Run, "due_at", "claimed_at", "queued_at", "started_at", "finished_at"),
        ("start_delay_seconds", start_delay),
        ("duration_seconds", lambda run: run_duration(run) if run.finished_at else None),
        *fields_of(Run, "missed_before", "missed_from"),
        ("args", lambda run: redact_secrets(run.args)),
        ("kwargs", lambda run: redact_secrets(run.kwargs)),
        *fields_of(Run, "idempotency_key"),
        ("rerun_of", lambda run: run.rerun_of_id and str(run.rerun_of_id)),
        *fields_of(Run, "node", "cancel_requested_at"),
        ("job_version", lambda run: run.ran_version),
        ("release", lambda run: run.ran_release),
    ]

    @admin.display(description=gettext_lazy("scheduled"))
    def scheduled(self, run: Run) -> str:
        trigger = "" if run.trigger == Trigger.SCHEDULE else run.shown_trigger_label
        return format_html(
            "{}{}", render_time(run.scheduled_at, near=clock.now()), render_muted(trigger)
        )

    def get_list_display(self, request: HttpRequest) -> Any:
        """Name the jobs without links for users who may not view jobs.

        If the list searches logs, it has a column with the matching lines.
        """
        columns = super().get_list_display(request)
        if searches_logs(request, self.admin_site):
            columns = [*columns, "log_line"]
        if may_view(request, Job, self.admin_site):
            return columns
        return ["job_name" if column == "job_link" else column for column in columns]

    @admin.display(description=gettext_lazy("job"))
    def job_name(self, run: Run) -> str:
        return str(run.job)

    @admin.display(description=gettext_lazy("job"))
    def job_link(self, run: Run) -> str:
        return link(run.job, self.admin_site)

    @admin.display(description=gettext_lazy("state"))
    def state_and_reason(self, run: Run) -> str:
        max_attempts = max(run.attempt, run.job.max_attempts)
        attempt_text = _("attempt %(attempt)d of %(most)d") % {
            "attempt": run.attempt,
            "most": max_attempts,
        }
        reason = with_ellipsis(run.reason, 100)
        return format_html(
            "{}{}{}",
            state_badge(run.state),
            render_muted(attempt_text if max_attempts > 1 else ""),
            render_muted(reason),
        )

    @admin.display(description=gettext_lazy("started"))
    def started(self, run: Run) -> str:
        """Show the first start and its delay. For a run that hasn't started, show when it's due."""
        first = _first_attempt(run)
        late = first_start_delay(run, first)
        if late is not None:
            started = render_time((first or run).started_at, near=run.scheduled_at)
            return format_html(
                "{}{}",
                started,
                render_muted(_("%(time)s late") % {"time": duration_or_empty(late)}),
            )
        if State(run.state) in UNFINISHED:
            return render_muted(
                format_html(_("due {}"), render_time(run.due_at, near=run.scheduled_at))
            )
        return EMPTY

    @admin.display(description=gettext_lazy("duration"))
    def took(self, run: Run) -> str:
        duration = duration_or_empty(total_duration(run, _first_attempt(run)))
        if run.started_at is None or run.finished_at is None:
            return duration
        until = format_html(_("until {}"), render_time(run.finished_at, near=run.scheduled_at))
        return format_html("{}{}", duration, render_muted(until))

    @admin.display(description=gettext_lazy("log"))
    def log_line(self, run: Run) -> str:
        """Show the line that matches. ``changelist_view`` attaches it."""
        return getattr(run, "log_line", "") or EMPTY

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[RunChangeList]:
        return RunChangeList

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        response = super().changelist_view(request, extra_context)
        rows = rows_to_show(response)
        first = first_attempts(rows)
        changelist = getattr(response, "context_data", {}).get("cl")
        for run in rows:
            run.first_attempt = first.get(run.pk)
            if isinstance(changelist, RunChangeList):
                run.log_line = changelist.render_log_line(run)
        return response

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(require_safe(partial(suggest_jobs, self)))
        return [path("jobs/", view, name=SUGGESTIONS_URL), *super().get_urls()]

    def get_list_filter(self, request: HttpRequest) -> Any:
        site = self.admin_site
        hidden = () if may_view(request, Job, site) else JOB_FILTERS
        if not may_view(request, Attempt, site):
            hidden = (*hidden, LogFilter)
        return [item for item in super().get_list_filter(request) if item not in hidden]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        """Load the jobs with a separate query.

        With a join, a database may start from the jobs and sort all their runs.
        """
        rows = super().get_queryset(request).prefetch_related("job")
        return filter_by_visible_jobs(rows, "job", request, self.admin_site)

    def without_long_columns(self, rows: QuerySet[Run]) -> QuerySet[Run]:
        jobs = Prefetch("job", Job.with_deleted.defer("args", "kwargs", "declared", "imported"))
        return rows.defer("args", "kwargs").prefetch_related(None).prefetch_related(jobs)

    def has_view_permission(self, request: HttpRequest, obj: Run | None = None) -> bool:
        hidden = obj is not None and is_hidden(request, obj.job, self.admin_site)
        return super().has_view_permission(request, obj) and not hidden

    def has_unsearched_rows(self, changelist: ChangeList) -> bool:
        search = changelist.log_search if isinstance(changelist, RunChangeList) else None
        return search is not None and search.more

    def exported_rows(self, request: HttpRequest) -> QuerySet[Run]:
        rows = super().exported_rows(request).prefetch_related(None)
        attempts = Attempt.objects.filter(run=OuterRef("pk")).order_by("-number")
        ran = {"version": "definition__version", "release": "release"}
        rows = rows.annotate(
            **{f"ran_{name}": Subquery(attempts.values(path)[:1]) for name, path in ran.items()}
        )
        return rows.prefetch_related(
            Prefetch("job", Job.with_deleted.only("namespace", "name", "deleted_at"))
        )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Run], search_term: str
    ) -> tuple[QuerySet[Run], bool]:
        if not search_term.strip():
            return queryset, False
        if run_ids := id_range_in(admin_scope(request, self.admin_site).runs, search_term):
            return queryset.filter(pk__range=run_ids), False
        jobs = Job.with_deleted.all()
        for word in search_words(search_term):
            jobs = jobs.filter(Q(name__icontains=word) | Q(namespace__icontains=word))
        return filter_by_jobs(queryset, jobs), False


def _first_attempt(run: Run) -> Attempt | None:
    """Return the first attempt if the run had several. ``changelist_view`` attaches it."""
    return getattr(run, "first_attempt", None)
