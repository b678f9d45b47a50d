""" "Why didn't it run?" as a page: a time in the job's zone, and the answer in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode
from uuid import UUID
from zoneinfo import ZoneInfo

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import dateformat
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_dcron.admin.display import badge, link, may_view, state_badge
from django_dcron.admin.visibility import scope_of
from django_dcron.models import Job, Node, Run
from django_dcron.observability.scope import Scope
from django_dcron.observability.why.explanation import Answer, explain
from django_dcron.observability.why.inquiry import zone_of
from django_dcron.observability.why.verdicts import Verdict
from django_dcron.time_texts import parse_datetime

URL_NAME = "django_dcron_job_why"
BADGES = {
    Verdict.COUNTED: ("missed", gettext_lazy("missed, counted on another run")),
    Verdict.TO_COME: ("pending", gettext_lazy("has not come yet")),
    Verdict.NOT_SCHEDULED: ("cancelled", gettext_lazy("not on its schedule")),
    Verdict.EXCLUDED: ("cancelled", gettext_lazy("excluded by its calendar")),
    Verdict.BEFORE_START: ("cancelled", gettext_lazy("before its start")),
    Verdict.AFTER_END: ("cancelled", gettext_lazy("after its end")),
    Verdict.NOT_CREATED: ("cancelled", gettext_lazy("did not exist yet")),
    Verdict.PAUSED: ("paused", gettext_lazy("paused")),
    Verdict.CHANGED: ("cancelled", gettext_lazy("changed since")),
    Verdict.QUARANTINED: ("failed", gettext_lazy("out of scheduling")),
    Verdict.NOT_CLAIMED: ("failed", gettext_lazy("not considered yet")),
    Verdict.PRUNED: ("cancelled", gettext_lazy("pruned")),
    Verdict.UNEXPLAINED: ("failed", gettext_lazy("unexplained")),
}
"""Of what is not the state of a run."""
RUN_ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


@dataclass(frozen=True, slots=True)
class Neighbour:
    label: str
    url: str


def view(model_admin: admin.ModelAdmin[Job], request: HttpRequest, object_id: str) -> HttpResponse:
    site = model_admin.admin_site
    if not (model_admin.has_view_permission(request) and may_view(request, Run, site)):
        raise PermissionDenied
    job = model_admin.get_object(request, unquote(object_id))
    if job is None:
        raise Http404
    if not model_admin.has_view_permission(request, job):
        raise PermissionDenied
    zone = zone_of(job)
    asked, error = _asked(request.GET.get("at", ""), zone)
    context: dict[str, Any] = {
        **site.each_context(request),
        "title": _("Why did it run, or not?"),
        "subtitle": str(job),
        "opts": model_admin.opts,
        "original": job,
        "media": model_admin.media,
        "zone": zone.key,
        "at": _as_typed(asked) if asked else "",
        "step": 1 if asked and asked.second else 60,  # the field has seconds only where they are meant
        "url": url_of(job, site),
        "error": error,
    }
    if asked and not error:
        try:
            context |= _explained(request, job, asked, site)
        except ValueError:
            context["error"] = _("Use a year from 1970 to 2199.")
    request.current_app = site.name
    return TemplateResponse(request, "admin/django_dcron/job/why.html", context)


def _explained(request: HttpRequest, job: Job, asked: datetime, site: admin.AdminSite) -> dict[str, Any]:
    scope = scope_of(request, site)
    tells_nodes = may_view(request, Node, site) and not scope.narrows(Node)
    answer = explain(job, asked, tell_nodes=tells_nodes)
    if answer.run is not None and not scope.sees(answer.run):
        return {"error": _("You may not see the run of that time.")}
    return _answered(answer, asked, job, site, scope)


def url_of(job: Job, site: admin.AdminSite, at: datetime | None = None) -> str:
    url = reverse(f"admin:{URL_NAME}", args=[job.pk], current_app=site.name)
    return url if at is None else f"{url}?{urlencode({'at': f'{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}'})}"


def _asked(text: str, zone: ZoneInfo) -> tuple[datetime | None, str]:
    """The time in the job's zone, and what is wrong with the text."""
    if not text.strip():
        return None, ""
    try:
        found = parse_datetime(text.strip())
    except ValueError:
        found = None
    if found is None:
        return None, _("“%(text)s” is not a date and time. Allowed: 2026-12-01T09:00.") % {"text": text}
    try:
        return (found.replace(tzinfo=zone) if found.tzinfo is None else found.astimezone(zone)), ""
    except OverflowError:
        return None, _("Use a year from 1970 to 2199.")


def _as_typed(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S}" if at.second else f"{at:%Y-%m-%dT%H:%M}"


def _answered(
    answer: Answer, asked: datetime, job: Job, site: admin.AdminSite, scope: Scope
) -> dict[str, Any]:
    return {
        "answer": answer,
        "badge": _badge(answer.verdict),
        "about": dateformat.format(
            answer.occurrence.astimezone(asked.tzinfo) if answer.occurrence else asked, "l, Y-m-d H:i:s T"
        ),
        "sentences": list(_linked(answer.sentences, site, scope)),
        "run_link": link(answer.run, site, _("The run, its attempts and logs")) if answer.run else "",
        "before": _neighbour(answer.before, job, asked, site),
        "after": _neighbour(answer.after, job, asked, site),
    }


def _badge(verdict: Verdict) -> str:
    return badge(*BADGES[verdict]) if verdict in BADGES else state_badge(verdict)


def _neighbour(at: datetime | None, job: Job, asked: datetime, site: admin.AdminSite) -> Neighbour | None:
    if at is None:
        return None
    return Neighbour(f"{at.astimezone(asked.tzinfo):%Y-%m-%d %H:%M:%S %Z}", url_of(job, site, at))


def _linked(sentences: Sequence[str], site: admin.AdminSite, scope: Scope) -> Iterator[SafeString]:
    """With the runs that they name by their ids linked, if those are there still."""
    named = {UUID(found) for sentence in sentences for found in RUN_ID.findall(sentence)}
    runs = {str(run.pk): run for run in scope.runs.filter(pk__in=named).only("pk")} if named else {}
    for sentence in sentences:
        ends = [match.span() for match in RUN_ID.finditer(sentence) if match[0] in runs]
        pieces, position = [], 0
        for start, end in ends:
            pieces += [
                (sentence[position:start],),
                (link(runs[sentence[start:end]], site, sentence[start:end]),),
            ]
            position = end
        yield format_html_join("", "{}", [*pieces, (format_html("{}", sentence[position:]),)])
