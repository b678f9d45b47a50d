"""How a job stands: for its row in the list, and for what its page shows beside the form."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
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
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import gettext as _

from django_dcron import control
from django_dcron.admin.change_log import LoggedAdmin
from django_dcron.admin.display import badge, link, list_url, may_view, moment_in
from django_dcron.admin.jobs import why
from django_dcron.admin.jobs.duration_chart import draw
from django_dcron.admin.refreshing import Part
from django_dcron.admin.visibility import scope_of, visible_nodes
from django_dcron.domain import clock
from django_dcron.domain.durations import write_duration
from django_dcron.exceptions import InvalidSchedule
from django_dcron.models import Job, Node, Run, Statistics
from django_dcron.observability import chains, cluster, standing
from django_dcron.observability.jobs import next_run_of, problem_of, statistics_of
from django_dcron.observability.lookahead import in_words, problem_in_words
from django_dcron.observability.wording import plain_moment
from django_dcron.time_texts import parse_datetime

OCCURRENCES = 10
RUNS = 20
REFRESHED_EVERY = 5
STANDING_URL = "django_dcron_job_standing"
PAUSED_BY = "paused"
COUNTED = ("succeeded", "failed", "skipped", "missed", "cancelled", "failures_in_a_row")


def pause_note(job: Job) -> str:
    """Why it is paused, and until when; empty if it is not."""
    if job.enabled or job.paused_until is None:
        return "" if job.enabled else job.pause_reason
    until = plain_moment(job.paused_until)
    if not job.pause_reason:
        return _("until %(until)s") % {"until": until}
    return _("%(reason)s, until %(until)s") % {"until": until, "reason": job.pause_reason}


def state_badge_of(job: Job) -> str:
    if not job.enabled:
        return badge("paused", _("paused"))
    if problem_of(job):
        return badge("failed", _("out of scheduling"))
    return badge("enabled", _("enabled"))


def words_of(job: Job) -> str:
    """The schedule in words, or what is wrong with it."""
    try:
        return in_words(job.parsed_schedule)
    except InvalidSchedule as error:
        return error.said(translation)


def zone_name(job: Job) -> str | None:
    """The zone its schedule is read in; None if that is not to be had."""
    try:
        return job.parsed_schedule.timezone
    except InvalidSchedule:
        return None


class JobPage:
    """Facts of the row as it is stored: the form beside it may hold values that were refused."""

    def __init__(self, job_id: int, request: HttpRequest, model_admin: admin.ModelAdmin[Job]):
        site = model_admin.admin_site
        self.job = job = _read(model_admin.get_queryset(request), job_id)
        runs = scope_of(request, site).runs
        self.standing = Standing(job, request, site)
        self.part = self.standing.part.render({"standing": self.standing}, request)
        self.zone = self.standing.zone
        self.statistics = self.standing.statistics
        self.may_view_runs = self.standing.may_view_runs
        self.runs = (
            list(runs.filter(job=job.pk).order_by("-scheduled_at")[:RUNS]) if self.may_view_runs else []
        )
        self.all_runs = list_url(Run, site, job__id__exact=str(job.pk))
        self.why_url, self.why_zone = why.url_of(job, site), self.zone or "UTC"

    @cached_property
    def ahead(self) -> tuple[list[datetime], str]:
        """The next occurrences, and the reason if there are none; for those who do not see the form's preview of them."""
        return _preview(self.job)

    @property
    def counts(self) -> list[tuple[object, int]]:
        """Label and value of each; empty before the scheduler has seen the job."""
        if self.statistics is None:
            return []
        labels = {field.name: field.verbose_name for field in Statistics._meta.concrete_fields}
        return [(labels[name], getattr(self.statistics, name)) for name in COUNTED]


class Standing:
    """How the job stands, at a glance: what refreshes itself at the top of its page. A refresh brings along who has paused this
    version of the job, so that it is not looked up anew each time."""

    def __init__(self, job: Job, request: HttpRequest, site: admin.AdminSite):
        self.job = job
        scope = scope_of(request, site)
        author = _author_told(job, request.GET.get(PAUSED_BY, "")) or standing.paused_by(job)
        self.part = _part_of(job, site, author)
        self.may_view_runs = may_view(request, Run, site)
        self.state = state_badge_of(job)
        self.problem = problem_in_words(job, problem_of(job))
        self.words = words_of(job)
        self.zone = zone_name(job)
        self.pause = standing.pause_of(job, author)
        self.next_run = next_run_of(job)
        self.until_next = _ahead(self.next_run) if self.next_run else ""
        self.statistics = statistics_of(job)
        self.ever = standing.rate_of_all(self.statistics)
        running = standing.running(job, scope) if self.may_view_runs else []
        self.running = running[: standing.RUNNING_NAMED]
        self.more_running = len(running) > len(self.running)
        latest = standing.latest_finished(job, scope) if self.may_view_runs else []
        self.last = max(latest, key=lambda run: run.finished_at or run.scheduled_at, default=None)
        self.lately = standing.rate_of(latest)
        self.chart = draw(latest)
        followed = self.statistics is not None and self.statistics.followed
        after = chains.jobs_after(job, scope) if followed else []
        self.followers = [(link(each.job, site), each.get_on_display()) for each in after[: chains.SHOWN]]
        self.more_followers = len(after) > chains.SHOWN
        self.may_view_nodes = may_view(request, Node, site)
        leaders = cluster.leaders_of(job, cluster.nodes(job.namespace)) if self.may_view_nodes else []
        is_visible = visible_nodes(request, site)
        self.leaders = [(each, link(each.node, site)) for each in leaders if is_visible(each.node)]

    @property
    def is_claimed(self) -> bool:
        """Whether whoever leads its shard claims its occurrences."""
        return self.job.enabled and not self.problem

    @property
    def next_in_zone(self) -> str:
        """The next run as the job's own clock shows it; empty if that is the site's."""
        if self.next_run is None or self.zone is None or self.zone == get_current_timezone_name():
            return ""
        return moment_in(self.next_run, self.zone)


def _part_of(job: Job, site: admin.AdminSite, author: standing.Author | None) -> Part:
    url = reverse(f"admin:{STANDING_URL}", args=[job.pk], current_app=site.name)
    if author:
        at = author.at.isoformat() if author.at else ""
        told = Signer(salt=STANDING_URL).sign_object([job.pk, job.version, author.by, at])
        url = f"{url}?{urlencode({PAUSED_BY: told})}"
    return Part("dcron-standing", "admin/django_dcron/job/standing.html", url, REFRESHED_EVERY)


def _author_told(job: Job, told: str) -> standing.Author | None:
    """None if it is about another version, or not from us."""
    try:
        job_id, version, by, at = Signer(salt=STANDING_URL).unsign_object(told)
    except BadSignature:
        return None
    if (job_id, version) != (job.pk, job.version):
        return None
    return standing.Author(by, parse_datetime(at) if at else None)


class ToldAdmin(LoggedAdmin[Job]):
    """What the pages of a job tell besides the form: how it stands, why it ran or did not; and who has changed what."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("<path:object_id>/standing/", view(self.standing_view), name=STANDING_URL),
            path("<path:object_id>/why/", view(partial(why.view, self)), name=why.URL_NAME),
            *super().get_urls(),
        ]

    def standing_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            job = _read(self.get_queryset(request), unquote(object_id))
        except (Job.DoesNotExist, ValueError):
            raise Http404 from None
        if not self.has_view_permission(request, job):
            raise PermissionDenied
        shown = Standing(job, request, self.admin_site)
        return shown.part.refreshed({"standing": shown}, request)


def _read(jobs: QuerySet[Job], job_id: int | str) -> Job:
    return jobs.select_related("cursor", "statistics", "calendar").get(pk=job_id)


def _ahead(at: datetime) -> str:
    """How long until then; to the minute, so that it stays the same for as long."""
    left = at - clock.now()
    if left <= timedelta():
        return _("now")
    if left < timedelta(minutes=1):
        return _("in less than a minute")
    return _("in %(span)s") % {"span": write_duration(left - left % timedelta(minutes=1))}


def _preview(job: Job) -> tuple[list[datetime], str]:
    """The next occurrences, and the reason if there are none."""
    try:
        found = control.preview(job, OCCURRENCES)
    except InvalidSchedule as error:
        return [], error.said(translation)
    return found, "" if found else _("Nothing to come.")
