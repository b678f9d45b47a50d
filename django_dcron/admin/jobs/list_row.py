"""Render the latest runs and the buttons of a job for the list of jobs.

Invariants:

- A page of the list needs a fixed number of queries, whatever its length.
- The height of a bar shows the state, like its color, because some people can't distinguish the
  colors. Failed runs have the tallest bars, and runs that didn't start the lowest.
- A button submits the list's own form to the action's URL. The action checks permission and state
  again, and leads back to the filtered list.
- The browser itself opens and closes the menu of a row, so the menu needs no script.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_dcron.admin.actions import FROM_LIST
from django_dcron.admin.display import (
    change_url,
    duration_or_empty,
    list_url,
    may_view,
    render_muted,
    state_badge,
)
from django_dcron.admin.freeze import freeze_of_next_run
from django_dcron.admin.jobs import backfill_page, why
from django_dcron.admin.visibility import admin_scope
from django_dcron.diagnosis.job_state import next_run_of
from django_dcron.diagnosis.recent_runs import RecentRuns, recent_runs
from django_dcron.models import Job, Run
from django_dcron.models.run import STATE_LABELS
from django_dcron.policies.freezing import FreezeExtent
from django_dcron.policies.lifecycle import State

if TYPE_CHECKING:
    from django_dcron.admin.jobs.admin import JobAdmin
    from django_dcron.admin.object_action import ObjectAction

BUTTONS = ("run_now", "pause", "resume")
"""The actions with a button in the row. The row's menu has all other actions."""
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
KEY_PLACEHOLDER = "__job__"
"""Takes the place of a job's key in the pattern of a URL."""
STEP, BAR, HEIGHT = 4, 3, 18
"""Distance and width of the bars, and height of the image, in pixels."""
HEIGHTS = {
    State.FAILED: 18,
    State.RUNNING: 15,
    State.SUCCEEDED: 12,
    State.CANCELLED: 10,
    State.MISSED: 8,
    State.SKIPPED: 6,
    State.WAITING: 4,
    State.QUEUED: 3,
    State.PENDING: 2,
}
"""The height of the bar of a run in each state, in pixels."""


@dataclass(frozen=True, slots=True)
class JobRow:
    recent: RecentRuns
    runs_url: str
    """The URL of the job's runs; empty if the user may not view runs."""
    last_url: str
    """The URL of the run that finished last; empty if there is none."""
    buttons: SafeString
    freeze: FreezeExtent | None
    """The freeze that holds back the next run."""
    is_running: bool
    """Whether a run that the user may view is running."""


def attach_rows(model_admin: JobAdmin, request: HttpRequest, jobs: Iterable[Any]) -> None:
    """Set the attribute ``row`` of each job to its ``JobRow``."""
    jobs, site = list(jobs), model_admin.admin_site
    sees_runs = may_view(request, Run, site)
    scope = admin_scope(request, site)
    recent = recent_runs(jobs, scope) if sees_runs else {}
    running = scope.runs.running().filter(job__in=jobs) if sees_runs else Run.objects.none()
    running_jobs = {*running.order_by().values_list("job_id", flat=True)}
    actions = _RowActions(model_admin, request)
    for job in jobs:
        runs = recent.get(job.pk, RecentRuns(()))
        last = runs.last_finished
        runs_url = list_url(Run, site, job__id__exact=str(job.pk)) if sees_runs else ""
        job.row = JobRow(
            recent=runs,
            runs_url=runs_url,
            last_url=change_url(Run(pk=last.run_id), site) if last else "",
            buttons=actions.of(job, runs_url),
            freeze=freeze_of_next_run(request, job, next_run_of(job)),
            is_running=job.pk in running_jobs,
        )


def render_running(row: JobRow) -> str:
    """Render a link to the runs, if one of them is running."""
    if not row.is_running:
        return ""
    return format_html(' <a href="{}">{}</a>', row.runs_url, state_badge(State.RUNNING))


def render_history(row: JobRow) -> str:
    """Render the sparkline, the success rate and the durations of the latest runs, if any."""
    if not row.recent.runs:
        return ""
    number = len(row.recent.runs)
    summary = f"{_('Latest runs')}: {_counts(row.recent)}"
    return format_html(
        '<a class="dcron-spark" href="{}" title="{}"><svg width="{}" height="{}" role="img" '
        'aria-label="{}">{}</svg></a>{}',
        row.runs_url,
        summary,
        STEP * number,
        HEIGHT,
        summary,
        _bars(row.recent),
        _figures(row.recent),
    )


def _bars(recent: RecentRuns) -> SafeString:
    """Return one path per state, because a page may have thousands of bars."""
    paths: dict[str, list[str]] = {}
    for number, run in enumerate(recent.runs):
        height = HEIGHTS[State(run.state)]
        bar = f"M{STEP * number} {HEIGHT - height}h{BAR}v{height}h-{BAR}z"
        paths.setdefault(run.state, []).append(bar)
    return format_html_join(
        "",
        '<path class="dcron-fill dcron-{}" d="{}"/>',
        ((state, "".join(bars)) for state, bars in paths.items()),
    )


def _counts(recent: RecentRuns) -> str:
    counts = Counter(run.state for run in recent.runs)
    return ", ".join(f"{label} {counts[state]}" for state, label in STATE_LABELS if counts[state])


def _figures(recent: RecentRuns) -> str:
    middle, high = recent.duration(50), recent.duration(95)
    durations = ""
    if middle is not None:
        values = {"middle": _unbroken(middle), "high": _unbroken(high)}
        durations = _("p50 %(middle)s, p95 %(high)s") % values
    return format_html("{}{}", _rate(recent), render_muted(durations))


def _rate(recent: RecentRuns) -> str:
    """Render the success rate, or the number of runs in each state if some were missed.

    The rate is about the runs that started, so it would look too good beside missed runs.
    """
    if any(run.state == State.MISSED for run in recent.runs):
        return render_muted(_counts(recent))
    if (percent := recent.success_rate.percent) is None:
        return ""
    percent = int(percent)  # rounded down, so that 100 means all
    rate = _("%(percent)d%% succeeded") % {"percent": percent}
    return format_html(' <span class="dcron-quiet" title="{}">{}%</span>', rate, percent)


def _unbroken(duration: timedelta | None) -> str:
    return duration_or_empty(duration).replace(" ", NO_BREAK_SPACE)


class _RowActions:
    """The buttons and the menu of each row.

    URLs are reversed once per page, because a row has up to ten of them.
    """

    def __init__(self, model_admin: JobAdmin, request: HttpRequest) -> None:
        site = model_admin.admin_site
        self._admin, self._request = model_admin, request
        self._backfills = model_admin.may_backfill(request)
        self._query = urlencode({FROM_LIST: request.GET.urlencode()})
        self._change, self._why, self._backfill = (
            reverse(f"admin:{name}", args=[KEY_PLACEHOLDER], current_app=site.name)
            for name in ("django_dcron_job_change", why.URL_NAME, backfill_page.URL_NAME)
        )
        self._urls = {
            action.name: reverse(
                "admin:django_dcron_job_action",
                args=[KEY_PLACEHOLDER, action.name],
                current_app=site.name,
            )
            for action in model_admin.object_actions
        }

    def of(self, job: Job, runs_url: str) -> SafeString:
        possible = [
            action
            for action in self._admin.object_actions
            if not self._admin.refusal(self._request, action, job)
        ]
        buttons = [self._button(each, job) for each in possible if each.name in BUTTONS]
        may_change = self._admin.has_change_permission(self._request, job)
        label = _("Edit") if may_change else _("View")
        items = [format_html('<a href="{}">{}</a>', _url_for(self._change, job), label)]
        if runs_url:
            items.append(format_html('<a href="{}">{}</a>', runs_url, _("View runs")))
            items.append(format_html('<a href="{}">{}</a>', _url_for(self._why, job), _("Why?")))
        for action in possible:
            if action.has_page:
                url = _url_for(self._urls[action.name], job)
                items.append(format_html('<a href="{}">{} …</a>', url, action.label))
            elif action.name not in BUTTONS:
                items.append(self._button(action, job))
        if self._backfills:
            url = _url_for(self._backfill, job)
            items.append(format_html('<a href="{}">{} …</a>', url, _("Backfill")))
        return format_html(
            '<div class="dcron-row-buttons">{}<button type="button" class="dcron-row-button" '
            'popovertarget="dcron-more-{}" aria-label="{}">{}</button></div>'
            '<div popover class="dcron-menu" id="dcron-more-{}"><ul>{}</ul></div>',
            format_html_join(" ", "{}", ((button,) for button in buttons)),
            job.pk,
            _("More: %(job)s") % {"job": job},
            _("More"),
            job.pk,
            format_html_join("", "<li>{}</li>", ((item,) for item in items)),
        )

    def _button(self, action: ObjectAction[Job], job: Job) -> SafeString:
        return format_html(
            '<button type="submit" class="dcron-row-button" formaction="{}?{}" formnovalidate '
            'aria-label="{}">{}</button>',
            _url_for(self._urls[action.name], job),
            self._query,
            f"{action.label}: {job}",
            action.label,
        )


def _url_for(pattern: str, job: Job) -> str:
    """Return the URL for ``job``."""
    return pattern.replace(KEY_PLACEHOLDER, str(job.pk))
