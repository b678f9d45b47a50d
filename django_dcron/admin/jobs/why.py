"""The page that explains why a job ran, or didn't run, at a given time in its time zone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode
from uuid import UUID
from zoneinfo import ZoneInfo

from django.contrib.admin import AdminSite
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import dateformat
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_dcron.admin.base import BaseAdmin
from django_dcron.admin.display import badge, link, may_view, state_badge
from django_dcron.admin.visibility import admin_scope
from django_dcron.diagnosis.scope import Scope
from django_dcron.diagnosis.why.explanation import Answer, explain_local
from django_dcron.diagnosis.why.explanation_data import schedule_zone_of
from django_dcron.diagnosis.why.verdicts import WhyVerdict
from django_dcron.models import Job, Node, Run
from django_dcron.utils.time_parsing import parse_datetime

URL_NAME = "django_dcron_job_why"
BADGES = {
    WhyVerdict.COVERED: ("missed", gettext_lazy("Missed, counted by a later run")),
    WhyVerdict.NOT_DUE: ("pending", gettext_lazy("Not due yet")),
    WhyVerdict.NO_OCCURRENCE: ("cancelled", gettext_lazy("No occurrence at this time")),
    WhyVerdict.EXCLUDED: ("cancelled", gettext_lazy("Excluded by the calendar")),
    WhyVerdict.BEFORE_START: ("cancelled", gettext_lazy("Before the start time")),
    WhyVerdict.AFTER_END: ("cancelled", gettext_lazy("After the end time")),
    WhyVerdict.NOT_CREATED: ("cancelled", gettext_lazy("Job didn't exist yet")),
    WhyVerdict.PAUSED: ("paused", gettext_lazy("Paused")),
    WhyVerdict.FROZEN: ("paused", gettext_lazy("Frozen")),
    WhyVerdict.CHANGED: ("cancelled", gettext_lazy("Job changed since then")),
    WhyVerdict.QUARANTINED: ("failed", gettext_lazy("Quarantined")),
    WhyVerdict.NOT_CLAIMED: ("failed", gettext_lazy("Not processed yet")),
    WhyVerdict.PRUNED: ("cancelled", gettext_lazy("Pruned")),
    WhyVerdict.UNEXPLAINED: ("failed", gettext_lazy("Unexplained")),
}
"""Badges of the verdicts that don't come from a run's state."""
RUN_ID = re.compile(r"\b([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\b")


@dataclass(frozen=True, slots=True)
class Neighbor:
    label: str
    url: str


def why_view(model_admin: BaseAdmin[Job], request: HttpRequest, object_id: str) -> HttpResponse:
    site = model_admin.admin_site
    if not (model_admin.has_view_permission(request) and may_view(request, Run, site)):
        raise PermissionDenied
    job = model_admin.get_object(request, unquote(object_id))
    if job is None:
        raise Http404
    if not model_admin.has_view_permission(request, job):
        raise PermissionDenied
    zone = schedule_zone_of(job)
    requested, error = _parse_requested_time(request.GET.get("at", ""), zone)
    context: dict[str, Any] = {
        "title": _("Why did the job run (or not)?"),
        "subtitle": str(job),
        "original": job,
        "zone": zone.key,
        "at": _format_requested_time(requested) if requested else "",
        "url": why_url(job, site),
        "error": error,
    }
    if requested and not error:
        in_site, _error = _parse_requested_time(request.GET["at"], get_current_timezone())
        try:
            context |= _explanation_context(request, job, requested, in_site or requested, site)
        except ValueError:
            context["error"] = _out_of_range(context["at"])
    return model_admin.render_page(request, "job/why.html", context)


def _explanation_context(
    request: HttpRequest,
    job: Job,
    requested: datetime,
    in_site: datetime,
    site: AdminSite,
) -> dict[str, Any]:
    scope = admin_scope(request, site)
    show_nodes = may_view(request, Node, site) and not scope.narrows(Node)
    answer = explain_local(job, requested, in_site, show_nodes=show_nodes, scope=scope)
    if answer.run and not scope.sees(answer.run):
        return {"error": _("You don't have permission to view the run at that time.")}
    if answer.instant == requested:
        return _answer_context(answer, requested, job, site, scope)
    params = {"zone": requested.tzinfo, "site": in_site.tzinfo}
    note = _(
        "The job has no run at that time in its own time zone, %(zone)s. The answer is about that "
        "time in %(site)s."
    )
    return {**_answer_context(answer, in_site, job, site, scope), "note": note % params}


def why_url(job: Job, site: AdminSite, at: datetime | None = None) -> str:
    url = reverse(f"admin:{URL_NAME}", args=[job.pk], current_app=site.name)
    if at is None:
        return url
    return f"{url}?{urlencode({'at': f'{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}'})}"


def _parse_requested_time(text: str, zone: ZoneInfo) -> tuple[datetime | None, str]:
    """Return the time in the job's time zone, and an error message if ``text`` isn't a time."""
    if not text.strip():
        return None, ""
    try:
        parsed = parse_datetime(text.strip())
    except ValueError:
        parsed = None
    if parsed is None:
        return None, _("“%(text)s” isn't a date and time. Example: 2026-12-01T09:00.") % {
            "text": text
        }
    if parsed.tzinfo is None:
        return parsed.replace(tzinfo=zone), ""
    try:
        return parsed.astimezone(zone), ""
    except OverflowError:
        return None, _out_of_range(text)


def _out_of_range(text: str) -> str:
    return _("“%(text)s” is out of range. Use a year from 1970 to 2199.") % {"text": text}


def _format_requested_time(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S}" if at.second else f"{at:%Y-%m-%dT%H:%M}"


def _answer_context(
    answer: Answer, requested: datetime, job: Job, site: AdminSite, scope: Scope
) -> dict[str, Any]:
    at = answer.occurrence.astimezone(requested.tzinfo) if answer.occurrence else requested
    return {
        "answer": answer,
        "badge": _badge(answer.verdict),
        "heading": dateformat.format(at, "l, Y-m-d H:i:s T"),
        "sentences": list(_link_run_ids(answer.sentences, site, scope)),
        "run_link": link(answer.run, site, _("View run")) if answer.run else "",
        "before": _neighbor(answer.before, job, requested, site),
        "after": _neighbor(answer.after, job, requested, site),
    }


def _badge(verdict: WhyVerdict) -> str:
    return badge(*BADGES[verdict]) if verdict in BADGES else state_badge(verdict)


def _neighbor(
    at: datetime | None, job: Job, requested: datetime, site: AdminSite
) -> Neighbor | None:
    if at is None:
        return None
    return Neighbor(
        f"{at.astimezone(requested.tzinfo):%Y-%m-%d %H:%M:%S %Z}", why_url(job, site, at)
    )


def _link_run_ids(sentences: Sequence[str], site: AdminSite, scope: Scope) -> Iterator[SafeString]:
    """Link the runs that the sentences name by id, unless they are deleted."""
    run_ids = {UUID(run_id) for sentence in sentences for run_id in RUN_ID.findall(sentence)}
    runs: dict[str, Run] = {}
    if run_ids:
        runs = {str(run.pk): run for run in scope.runs.filter(pk__in=run_ids).only("pk")}
    for sentence in sentences:
        pieces = RUN_ID.split(sentence)  # texts and ids in turn
        linked = (link(runs[each], site, each) if each in runs else each for each in pieces)
        yield format_html_join("", "{}", ((each,) for each in linked))
