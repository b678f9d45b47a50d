"""Render what the list of jobs shows about the latest runs of a job, and its buttons.

Invariants:

- A page of the list needs a fixed number of queries, whatever its length.
- The height of a bar repeats its color: failed runs are the tallest, runs that didn't start the
  lowest.
- A button submits the list's own form to the action's URL. The action checks permission and state
  again, and leads back to the filtered list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_dcron.admin.actions import FROM_LIST
from django_dcron.admin.display import change_url, duration_or_empty, list_url, may_view, quiet
from django_dcron.admin.visibility import admin_scope
from django_dcron.diagnosis.recent_runs import RecentRuns, recent_runs
from django_dcron.models import Job, Run
from django_dcron.models.run import STATE_LABELS
from django_dcron.policies.lifecycle import State

if TYPE_CHECKING:
    from django_dcron.admin.actions import ActionAdmin

BUTTONS = ("run_now", "pause", "resume")
STEP, BAR, HEIGHT = 4, 3, 18
HEIGHTS = {State.FAILED: 18, State.SUCCEEDED: 11, State.RUNNING: 14, State.CANCELLED: 7}
"""Height of the bar of a run in this state; all other states have ``LOW``."""
LOW = 4


@dataclass(frozen=True, slots=True)
class JobRow:
    recent: RecentRuns
    runs_url: str
    last_url: str
    """The URL of the run that finished last; empty if there is none."""
    buttons: SafeString


def attach_rows(model_admin: ActionAdmin[Job], request: HttpRequest, jobs: Iterable[Any]) -> None:
    """Set ``row`` of each job."""
    jobs, site = list(jobs), model_admin.admin_site
    sees_runs = may_view(request, Run, site)
    recent = recent_runs(jobs, admin_scope(request, site)) if sees_runs else {}
    query = urlencode({FROM_LIST: request.GET.urlencode()})
    for job in jobs:
        runs = recent.get(job.pk, RecentRuns(()))
        last = runs.last_finished
        job.row = JobRow(
            runs,
            list_url(Run, site, job__id__exact=str(job.pk)),
            change_url(Run(pk=last.run_id), site) if last else "",
            _buttons(model_admin, request, job, query),
        )


def history(row: JobRow) -> str:
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
    """Return one path per state, because a page has up to 3,000 bars."""
    paths: dict[str, list[str]] = {}
    for number, run in enumerate(recent.runs):
        height = HEIGHTS.get(State(run.state), LOW)
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
    percent = recent.success_rate.percent
    middle, high = recent.duration(50), recent.duration(95)
    rate = "" if percent is None else _("%(percent)d%% succeeded") % {"percent": percent}
    durations = (
        ""
        if middle is None
        else _("p50 %(middle)s, p95 %(high)s")
        % {"middle": duration_or_empty(middle), "high": duration_or_empty(high)}
    )
    return format_html("{}{}", quiet(rate), quiet(durations))


def _buttons(
    model_admin: ActionAdmin[Job], request: HttpRequest, job: Job, query: str
) -> SafeString:
    site = model_admin.admin_site
    buttons = format_html_join(
        " ",
        '<button type="submit" class="dcron-row-button" formaction="{}?{}" formnovalidate '
        'aria-label="{}">{}</button>',
        (
            (
                reverse(
                    "admin:django_dcron_job_action",
                    args=[job.pk, action.name],
                    current_app=site.name,
                ),
                query,
                f"{action.label}: {job}",
                action.label,
            )
            for action in model_admin.object_actions
            if action.name in BUTTONS and not model_admin.refusal(request, action, job)
        ),
    )
    return format_html('<div class="dcron-row-buttons">{}</div>', buttons) if buttons else buttons
