"""The read-only admin of attempts, with their logs and tracebacks."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_dcron.admin.display import (
    EMPTY,
    duration_or_empty,
    link,
    may_view,
    moment_column,
    outcome_badge,
    render_exact_time,
    render_muted,
    render_time,
)
from django_dcron.admin.lists.base import HistoryAdmin, search_words
from django_dcron.admin.lists.filters import WorkerFilter, job_ids_by_word
from django_dcron.admin.lists.time_filter import AttemptTimeFilter
from django_dcron.admin.runs import attempt_times
from django_dcron.admin.runs.attempt_texts import plain_text, texts_of
from django_dcron.admin.runs.progress import progress_of
from django_dcron.admin.visibility import admin_scope, filter_by_visible_runs, is_hidden
from django_dcron.db import clock
from django_dcron.diagnosis.run_durations import run_duration
from django_dcron.diagnosis.run_ids import id_range_in
from django_dcron.models import Attempt, Run
from django_dcron.policies.lifecycle import Outcome
from django_dcron.utils.bounded_text import with_ellipsis

LONG_TEXTS = ("log", "traceback", "result")


@admin.register(Attempt)
class AttemptAdmin(HistoryAdmin[Attempt]):
    list_display = ("started", "job", "outcome_and_failure", "took", "worker")
    list_filter = ("outcome", AttemptTimeFilter, WorkerFilter)
    search_fields = ("run__job__name", "exception_class", "message", "worker")
    search_note = _(
        "Enter up to eight words of a job name, an exception, a message or a worker. The search "
        "and the filters cover the 100,000 latest attempts before the end of the selected "
        "time range. Enter the ID of a run to find all of its attempts."
    )
    ordering = ("-pk",)
    empty_text = _("No attempts yet. An attempt appears here when a worker starts a run.")

    readonly_fields = ("run_link",)

    finished_column = moment_column(
        "finished_at", _("finished"), near="started_at", show=render_exact_time
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Attempt]:
        """Return attempts without long texts and without a join.

        An attempt's page loads the texts itself. With a join, a database may start from the jobs
        and sort all their attempts.
        """
        rows = super().get_queryset(request).prefetch_related("run__job").defer(*LONG_TEXTS)
        return filter_by_visible_runs(rows, "run", request, self.admin_site)

    def has_view_permission(self, request: HttpRequest, obj: Attempt | None = None) -> bool:
        """Deny attempts whose run or job is hidden."""
        site = self.admin_site
        hidden = obj is not None and (
            is_hidden(request, obj.run, site) or is_hidden(request, obj.run.job, site)
        )
        return super().has_view_permission(request, obj) and not hidden

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Attempt], search_term: str
    ) -> tuple[QuerySet[Attempt], bool]:
        if run_ids := id_range_in(admin_scope(request, self.admin_site).runs, search_term):
            return queryset.filter(run__pk__range=run_ids), False
        words = search_words(search_term)
        for word, job_ids in zip(words, job_ids_by_word(words), strict=True):
            matching = Q(exception_class__icontains=word) | Q(worker__icontains=word)
            matching |= Q(message__icontains=word)
            if job_ids != []:  # without matching jobs, the query needs no runs
                matching |= Q(run__job__in=job_ids)
            queryset = queryset.filter(matching)
        return queryset, False

    @admin.display(description=_("started"))
    def started(self, attempt: Attempt) -> str:
        return render_time(attempt.started_at, near=clock.now())

    @admin.display(description=_("job"))
    def job(self, attempt: Attempt) -> str:
        number = gettext("attempt %(number)d") % {"number": attempt.number}
        return format_html(
            "{}{}", attempt.run.job, render_muted(number if attempt.number > 1 else "")
        )

    @admin.display(description=_("run"))
    def run_link(self, attempt: Attempt) -> str:
        return link(attempt.run, self.admin_site)

    @admin.display(description=_("run"))
    def run_text(self, attempt: Attempt) -> str:
        return str(attempt.run)

    @admin.display(description=_("outcome"))
    def outcome_column(self, attempt: Attempt) -> str:
        return outcome_badge(attempt.outcome)

    @admin.display(description=_("attempt"))
    def number_column(self, attempt: Attempt) -> str:
        return str(attempt.number)

    @admin.display(description=_("late outcome"))
    def late_outcome_column(self, attempt: Attempt) -> str:
        return outcome_badge(attempt.late_outcome) if attempt.late_outcome else EMPTY

    @admin.display(description=_("worker"))
    def worker_column(self, attempt: Attempt) -> str:
        return attempt.worker

    @admin.display(description=_("due"))
    def due_column(self, attempt: Attempt) -> str:
        return attempt_times.render_due_time(attempt)

    @admin.display(description=_("sent to worker"))
    def dispatched_column(self, attempt: Attempt) -> str:
        return attempt_times.render_dispatch_time(attempt, near=attempt.due_at)

    @admin.display(description=_("started"))
    def started_column(self, attempt: Attempt) -> str:
        return attempt_times.render_start_time(attempt, near=attempt.due_at)

    @admin.display(description=_("duration"))
    def duration_column(self, attempt: Attempt) -> str:
        return attempt_times.render_duration(attempt)

    @admin.display(description=_("outcome"))
    def outcome_and_failure(self, attempt: Attempt) -> str:
        name = attempt.exception_class.rpartition(".")[2]
        message = with_ellipsis(attempt.message, 100)
        failure = format_html("{}: {}", name, message) if name and message else name or message
        return format_html("{}{}", outcome_badge(attempt.outcome), render_muted(failure))

    @admin.display(description=_("duration"))
    def took(self, attempt: Attempt) -> str:
        if attempt.finished_at is None:
            return duration_or_empty(run_duration(attempt))
        until = format_html(
            gettext("until {}"), render_time(attempt.finished_at, near=attempt.started_at)
        )
        return format_html("{}{}", duration_or_empty(run_duration(attempt)), render_muted(until))

    @admin.display(description=_("progress"))
    def progress(self, attempt: Attempt) -> str:
        context = {"progress": progress_of(attempt)}
        return render_to_string("admin/django_dcron/progress.html", context).strip() or EMPTY

    @admin.display(description=_("message"))
    def message_text(self, attempt: Attempt) -> str:
        return self._text(attempt, "message")

    @admin.display(description=_("traceback"))
    def traceback_text(self, attempt: Attempt) -> str:
        text = self._text(attempt, "traceback")
        if not _is_cancelled(attempt):
            return text
        return format_html(
            "<details><summary>{}</summary>{}</details>",
            gettext("Where the code was stopped"),
            text,
        )

    @admin.display(description=_("result"))
    def result_text(self, attempt: Attempt) -> str:
        return self._text(attempt, "result")

    @admin.display(description=_("log"))
    def log_text(self, attempt: Attempt) -> str:
        return self._text(attempt, "log")

    def _text(self, attempt: Any, name: str) -> str:
        text = attempt.texts[name]
        return (
            render_to_string("admin/django_dcron/run/text.html", {"text": text}) if text else EMPTY
        )

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Omit the fields that have no value."""
        if obj is None:
            return []
        late = ["late_outcome_column"] if obj.late_outcome else []
        progress = ["progress"] if progress_of(obj) else []
        # The exception of a cancelled attempt contains only that it was cancelled.
        output = ["exception_class"] if obj.exception_class and not _is_cancelled(obj) else []
        output += [f"{name}_text" for name, text in obj.texts.items() if text]
        wait_times = ["due_column"] if obj.due_at else []
        wait_times += ["dispatched_column"] if obj.queued_at else []
        times = (*wait_times, "started_column", "finished_column", "duration_column")
        run = "run_link" if may_view(request, Run, self.admin_site) else "run_text"
        rows = [
            (run, "number_column"),
            ("outcome_column", *late, "worker_column"),
            times,
            *progress,
        ]
        return [
            (None, {"fields": rows}),
            *([(_("Output"), {"fields": output})] if output else []),
        ]

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Attempt | None:
        """Attach the attempt's long texts, cut to what the page shows."""
        attempt = super().get_object(request, object_id, from_field)
        if attempt is not None:
            attempt.texts = texts_of(attempt, self.admin_site)  # type: ignore[attr-defined]
        return attempt

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.text_view)
        return [
            path("<int:attempt_id>/text/<str:name>/", view, name="django_dcron_attempt_text"),
            *super().get_urls(),
        ]

    def text_view(self, request: HttpRequest, attempt_id: int, name: str) -> HttpResponse:
        """Serve one of the attempt's long texts without cutting it, or its lines that match."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        attempt = self.get_queryset(request).filter(pk=attempt_id).first()
        if attempt is None:
            raise Http404
        if not self.has_view_permission(request, attempt):
            raise PermissionDenied
        return plain_text(attempt_id, name, request.GET.get("q", "").strip())


def _is_cancelled(attempt: Attempt) -> bool:
    return attempt.outcome == Outcome.CANCELLED
