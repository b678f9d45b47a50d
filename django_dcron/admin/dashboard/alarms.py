"""What somebody should see to, on top of the dashboard: by the doctor's own checks of jobs' and nodes' rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.admin.display import list_url, may_view
from django_dcron.models import Job, Node
from django_dcron.observability.doctor import nodes
from django_dcron.observability.doctor.findings import WARNINGS, Code, Findings
from django_dcron.observability.doctor.window import Window


@dataclass(frozen=True, slots=True)
class Alarm:
    text: str
    url: str
    where: str
    """What the link to it says."""
    is_error: bool
    """Work is not being done."""


def of_jobs(out_of_scheduling: int, site: admin.AdminSite) -> Iterator[Alarm]:
    if out_of_scheduling:
        text = ngettext(
            "%(count)d job is out of scheduling: see why, correct and save it.",
            "%(count)d jobs are out of scheduling: see why, correct and save them.",
            out_of_scheduling,
        )
        url = list_url(Job, site, state="problem", enabled__exact="1")
        yield Alarm(text % {"count": out_of_scheduling}, url, _("See the jobs"), is_error=True)


def of_nodes(now: datetime, request: HttpRequest, site: admin.AdminSite) -> Iterator[Alarm]:
    """One of each kind, however many nodes have it."""
    if not may_view(request, Node, site):
        return
    findings = Findings()
    groups = nodes.examine_rows(Window(since=now, until=now, now=now), findings)
    about: defaultdict[Code, list[str]] = defaultdict(list)
    for finding in findings.listed:
        about[finding.code].append(finding.subject.name)
    if Code.RELEASES_DIFFER in about:
        about[Code.RELEASES_DIFFER] = sorted({node.release for live in groups.values() for node in live})
    url = list_url(Node, site)
    for code, names in about.items():
        if text := _in_words(code, ", ".join(names)):
            yield Alarm(text, url, _("See the nodes"), is_error=code not in WARNINGS)


def _in_words(code: Code, names: str) -> str:
    """Empty for what the list of nodes says well enough."""
    command = format_html("<code>{}</code>", "manage.py runcron")
    match code:
        case Code.NO_LIVE_NODE:
            return format_html(_("Nothing is being scheduled, for no node is live. Start {}."), command)
        case Code.NAMESPACE_UNSERVED:
            text = _(
                "No live node serves these namespaces: {}. Start {} with one of them as --namespace, or without."
            )
            return format_html(text, names, command)
        case Code.NODE_STALLED:
            text = _("Alive, but claiming nothing, for no tick goes through: {}. See the log; restart it.")
        case Code.NODE_DEGRADED:
            text = _(
                "Degraded, for the lock's server is out of reach: {}. Nothing runs twice; work may be done twice."
            )
        case Code.NODE_SKEWED:
            text = _(
                "Wall clock off by a second or more: {}. Schedules go by the database's clock, but logs lie; see to NTP."
            )
        case Code.RELEASES_DIFFER:
            text = _("Live nodes run different releases: {}. Fine during an upgrade; finish it.")
        case Code.NAMESPACES_OVERLAP:
            text = _(
                "Some nodes serve all namespaces, others one of them: work is done twice, though nothing runs twice."
            )
        case Code.SHARDS_DIFFER:
            text = _("Processes differ in DCRON_SHARDS: work is done twice, though nothing runs twice.")
        case _:
            return ""
    return format_html(text, names)
