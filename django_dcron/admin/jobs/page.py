"""The status of a job: texts and badges for its row in the list, and the panels of its page."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.core.signing import BadSignature, Signer
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from django.utils import translation
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from django_dcron import control
from django_dcron.admin.audit_log import AuditedAdmin
from django_dcron.admin.auto_refresh import PagePart
from django_dcron.admin.chain_list import ChainList
from django_dcron.admin.display import badge, link, list_url, may_view, time_in_zone
from django_dcron.admin.freeze import freeze_of_next_run
from django_dcron.admin.jobs import why
from django_dcron.admin.jobs.countdown import countdown_texts, time_until
from django_dcron.admin.jobs.duration_chart import draw_duration_chart
from django_dcron.admin.jobs.last_failure import last_failure
from django_dcron.admin.jobs.upcoming_months import UpcomingMonths, months_for
from django_dcron.admin.visibility import admin_scope, visible_nodes
from django_dcron.diagnosis import chains, cluster, job_status
from django_dcron.diagnosis.chain_graph import chain_of_job
from django_dcron.diagnosis.job_state import is_failing, next_run_of, problem_of, statistics_of
from django_dcron.diagnosis.lookahead import describe_schedule_of, only_follows, translate_problem
from django_dcron.diagnosis.run_durations import first_start_delay, total_duration
from django_dcron.diagnosis.run_history import first_attempts
from django_dcron.exceptions import InvalidSchedule
from django_dcron.jobs import sync
from django_dcron.jobs.bulk_skips import may_start_again
from django_dcron.jobs.placement import runs_without_schedule
from django_dcron.jobs.representation import JOB_FIELDS
from django_dcron.models import Attempt, AuditEntry, AuditKind, Job, Node, Run, Statistics
from django_dcron.models.statistics import COUNTED_STATES
from django_dcron.targets.shadow import is_shadow
from django_dcron.utils.bounded_text import with_ellipsis
from django_dcron.utils.time_format import format_site_time
from django_dcron.utils.time_parsing import parse_datetime

LONGEST_DECLARED = 100
"""The number of characters that are shown of a declared value."""
OCCURRENCES = 10
RUNS = 20
REFRESH_EVERY = 5
"""Seconds between two refreshes of the status panel."""
STATUS_URL = "django_dcron_job_status"
PAUSED_BY = "paused"
"""The query parameter of a refresh with the signed author of the current pause."""


def pause_note(job: Job) -> str:
    """Return why the job is paused and until when, or an empty string if it isn't paused."""
    if job.enabled:
        return ""
    if job.is_finished:
        return _("The schedule has no further occurrence.")
    if job.paused_until is None:
        return job.pause_reason
    until = format_site_time(job.paused_until)
    if not job.pause_reason:
        return _("until %(until)s") % {"until": until}
    return _("%(reason)s, until %(until)s") % {"until": until, "reason": job.pause_reason}


def job_state_badges(job: Job) -> SafeString:
    """Render the state of the job, and whether it is a shadow."""
    state = _state_badge(job)
    if not is_shadow(job.target):
        return state
    return format_html("{} {}", state, badge("shadow", _("Shadow")))


def _state_badge(job: Job) -> SafeString:
    if problem_of(job):
        return badge("failed", _("Quarantined"))
    if job.is_finished:
        return badge("finished", _("Finished"))
    if not job.enabled:
        return badge("paused", _("Paused"))
    if is_failing(job):
        return badge("failed", _("Failing"))
    return badge("enabled", pgettext("state of a job", "Enabled"))


def schedule_in_words(job: Job) -> str:
    """Return the schedule in words, or the error in the schedule."""
    try:
        return describe_schedule_of(job, job.parsed_schedule)
    except InvalidSchedule as error:
        return error.translate(translation)


def _only_follows(job: Job) -> bool:
    try:
        return only_follows(job, job.parsed_schedule)
    except InvalidSchedule:
        return False


def schedule_zone_name(job: Job) -> str | None:
    """Return the schedule's time zone, or None if the schedule is invalid."""
    try:
        return job.parsed_schedule.timezone
    except InvalidSchedule:
        return None


class ListedRun(NamedTuple):
    run: Run
    started_at: datetime | None
    """The start of the first attempt."""
    start_delay: timedelta | None
    duration: timedelta | None
    """From the first start to the end, with the waits between the attempts."""


def _listed_run(run: Run, first: Attempt | None) -> ListedRun:
    started_at = (first or run).started_at
    return ListedRun(run, started_at, first_start_delay(run, first), total_duration(run, first))


class NextOccurrences(NamedTuple):
    times: list[datetime]
    why_none: str
    """The reason if there are no occurrences, otherwise empty."""


class JobPage:
    """The data of a job's page besides the form. It describes the stored job, not the inputs."""

    def __init__(self, job_id: int, request: HttpRequest, model_admin: admin.ModelAdmin[Job]):
        site = model_admin.admin_site
        self.job = job = _load_job(model_admin.get_queryset(request), job_id)
        self._request, self._site, self._scope = request, site, admin_scope(request, site)
        runs = self._scope.runs
        self.status = StatusPanel(job, request, site)
        self.part = self.status.part.render({"status": self.status}, request)
        self.zone = self.status.zone
        self.countdown = countdown_texts()
        self.statistics = self.status.statistics
        self.may_view_runs = self.status.may_view_runs
        self.runs: list[ListedRun] = []
        self.all_runs = ""
        if self.may_view_runs:
            latest = list(runs.filter(job=job.pk).order_by("-scheduled_at")[:RUNS])
            first = first_attempts(latest)
            self.runs = [_listed_run(run, first.get(run.pk)) for run in latest]
            self.all_runs = list_url(Run, site, job__id__exact=str(job.pk))
        self.why_url, self.why_zone = why.why_url(job, site), self.zone or "UTC"

    @cached_property
    def is_declared(self) -> bool:
        return sync.is_still_declared(self.job)

    @property
    def is_no_longer_declared(self) -> bool:
        return sync.is_no_longer_declared(self.job)

    @property
    def edited_fields(self) -> list[tuple[object, str]]:
        """The label and the declared value of each field that someone changed."""
        return [
            (
                JOB_FIELDS[name].model_field.verbose_name,
                with_ellipsis(text, LONGEST_DECLARED),
            )
            for name, text in sync.declared_texts(self.job).items()
        ]

    @cached_property
    def chain(self) -> ChainList | None:
        """The jobs before and after the job; None for a job without a chain."""
        if not (self.job.after or self.status.followers):
            return None
        graph = chain_of_job(self.job, self._scope)
        return ChainList(graph, self.job, self._site, links_jobs=True) if graph else None

    @cached_property
    def next_occurrences(self) -> NextOccurrences:
        """The next occurrences of the stored job.

        The page shows them to users who can't see the preview of the form.
        """
        return _next_occurrences(self.job)

    @cached_property
    def months(self) -> UpcomingMonths | None:
        """The upcoming months, next to ``next_occurrences``; None without occurrences."""
        times = self.next_occurrences.times
        return months_for(self._request, self.job, times[0]) if times else None

    @property
    def may_start_again(self) -> bool:
        return may_start_again(self.job)

    @property
    def counts(self) -> list[tuple[object, int]]:
        """The label and value of each count; empty before the scheduler has seen the job."""
        if self.statistics is None:
            return []
        labels = {field.name: field.verbose_name for field in Statistics._meta.concrete_fields}
        counts = {state.value: self.statistics.shown_count(state) for state in COUNTED_STATES}
        if self.statistics.shadow_runs:
            counts["shadow_runs"] = self.statistics.shadow_runs
        counts["consecutive_failures"] = self.statistics.consecutive_failures
        return [(labels[name], number) for name, number in counts.items()]


class StatusPanel:
    """The status panel at the top of a job's page, which refreshes itself.

    Reading the author of the current pause takes a query, so the URL of a refresh contains the
    author.
    """

    def __init__(self, job: Job, request: HttpRequest, site: admin.AdminSite):
        self.job = job
        scope = admin_scope(request, site)
        signed = request.GET.get(PAUSED_BY, "")
        author = _author_of_refresh(job, signed) or job_status.paused_by(job)
        self.part = _status_part(job, site, author)
        self.may_view_runs = may_view(request, Run, site)
        self.state = job_state_badges(job)
        self.problem = translate_problem(job, problem_of(job))
        self.words = schedule_in_words(job)
        self.only_follows = _only_follows(job)
        self.zone = schedule_zone_name(job)
        self.pause = job_status.pause_of(job, author)
        self.next_run = next_run_of(job)
        freeze = freeze_of_next_run(request, job, self.next_run)
        self.until_next = time_until(self.next_run, freeze) if self.next_run else ""
        self.statistics = statistics_of(job)
        self.overall_rate = job_status.success_rate_of_statistics(self.statistics)
        running = job_status.running_runs(job, scope) if self.may_view_runs else []
        self.running = running[: job_status.RUNNING_NAMED]
        self.more_running = len(running) > len(self.running)
        latest = job_status.latest_finished(job, scope) if self.may_view_runs else []
        self.last = max(latest, key=lambda run: run.finished_at or run.scheduled_at, default=None)
        self.recent_rate = job_status.success_rate_of_runs(latest)
        self.chart = draw_duration_chart(latest)
        self.failure = last_failure(job, latest, request, site)
        has_followers = self.statistics is not None and self.statistics.followed
        after = chains.jobs_after(job, scope) if has_followers else []
        self.followers = [
            (link(each.job, site), each.get_on_display()) for each in after[: chains.SHOWN]
        ]
        self.more_followers = len(after) > chains.SHOWN
        self.may_view_nodes = may_view(request, Node, site)
        nodes = cluster.nodes(job.namespace) if self.may_view_nodes else []
        leaders = cluster.leaders_of(job, nodes) if nodes else []
        is_visible = visible_nodes(scope)
        self.leaders = [(each, link(each.node, site)) for each in leaders if is_visible(each.node)]
        if leaders and not self.leaders:  # the panel would say that no node serves the job
            self.may_view_nodes = False

    @property
    def is_started_by_nothing(self) -> bool:
        """Whether the job has no schedule and follows no job."""
        return not self.job.after and runs_without_schedule(self.job)

    @property
    def is_claimed(self) -> bool:
        """Whether the node that leads the job's shard claims its occurrences."""
        return self.job.enabled and not self.problem

    @property
    def next_in_zone(self) -> str:
        """The next run in the job's time zone; empty if that is the site's time zone."""
        if self.next_run is None or self.zone is None or self.zone == get_current_timezone_name():
            return ""
        return time_in_zone(self.next_run, self.zone)


def _status_part(
    job: Job, site: admin.AdminSite, author: job_status.PauseAuthor | None
) -> PagePart:
    url = reverse(f"admin:{STATUS_URL}", args=[job.pk], current_app=site.name)
    if author:
        at = author.at.isoformat() if author.at else ""
        signed = Signer(salt=STATUS_URL).sign_object([job.pk, job.version, author.by, at])
        url = f"{url}?{urlencode({PAUSED_BY: signed})}"
    return PagePart("dcron-status", "admin/django_dcron/job/status.html", url, REFRESH_EVERY)


def _author_of_refresh(job: Job, signed: str) -> job_status.PauseAuthor | None:
    """Return the author that ``signed`` contains.

    Returns None if it belongs to another version of the job, or if its signature is invalid.
    """
    try:
        job_id, version, by, at = Signer(salt=STATUS_URL).unsign_object(signed)
    except BadSignature:
        return None
    if (job_id, version) != (job.pk, job.version):
        return None
    return job_status.PauseAuthor(by, parse_datetime(at) if at else None)


class JobViewsAdmin(AuditedAdmin[Job]):
    """The views of a job besides the form: status panel, explanation of runs, history."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("<path:object_id>/status/", view(self.status_view), name=STATUS_URL),
            path("<path:object_id>/why/", view(partial(why.why_view, self)), name=why.URL_NAME),
            *super().get_urls(),
        ]

    def status_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            job = _load_job(self.get_queryset(request), unquote(object_id))
        except (Job.DoesNotExist, ValueError):
            raise Http404 from None
        if not self.has_view_permission(request, job):
            raise PermissionDenied
        panel = StatusPanel(job, request, self.admin_site)
        return panel.part.refresh_response({"status": panel}, request)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Link to the audit entries of the job's runs, which aren't entries of the job."""
        response = super().history_view(request, object_id, extra_context)
        context = getattr(response, "context_data", None)
        if context and may_view(request, AuditEntry, self.admin_site):
            lookups = {"job_id__exact": str(context["object"].pk), "kind__exact": AuditKind.RUN}
            context["run_entries_url"] = list_url(AuditEntry, self.admin_site, **lookups)
        return response


def _load_job(jobs: QuerySet[Job], job_id: int | str) -> Job:
    return jobs.select_related("cursor", "statistics", "calendar").get(pk=job_id)


def _next_occurrences(job: Job) -> NextOccurrences:
    try:
        occurrences = control.preview(job, OCCURRENCES)
    except InvalidSchedule as error:
        return NextOccurrences([], error.translate(translation))
    return NextOccurrences(occurrences, "" if occurrences else _("No upcoming occurrences."))
