"""The health lines on the dashboard and on the admin's index: problems and their remedies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import Any, NamedTuple

from django.db.models import Model
from django.utils import translation
from django.utils.translation import gettext as _

from django_dcron.admin.dashboard.viewer import Viewer
from django_dcron.admin.display import change_url, list_url
from django_dcron.admin.lists.filters import OVERDUE
from django_dcron.db.routing import alias_for
from django_dcron.db.session_limits import limited_lock_waits
from django_dcron.diagnosis.overdue import takeover_time
from django_dcron.diagnosis.system_health import latest_incident, read_facts
from django_dcron.jobs.pausing import AUTO_PAUSED
from django_dcron.models import Freeze, Incident, Job, Node, Run
from django_dcron.policies.health.facts import SystemFacts
from django_dcron.policies.health.problems import Problem
from django_dcron.policies.health.verdict import Verdict, assess
from django_dcron.schedules.timetable import BEGIN
from django_dcron.utils.bounded_text import with_ellipsis


class FilteredList(NamedTuple):
    """A change list and its filters."""

    model: type[Model]
    filters: dict[str, str]
    due_before_lookup: str = ""
    """The lookup that leaves out rows that aren't due; empty for all rows."""


_QUEUED = FilteredList(Run, {"state__exact": "queued"})
_OVERDUE = FilteredList(Run, {"state__exact": "pending"}, due_before_lookup="due_at__lt")
_RUNNING = FilteredList(Run, {"state__exact": "running"})
_FAILED = FilteredList(Run, {"state__exact": "failed"})
_FAILING_JOBS = FilteredList(Job, {"state": "failing"})
_LISTINGS: dict[Problem, FilteredList] = {
    Problem.NO_WORKER: _QUEUED,
    Problem.QUEUE_UNSERVED: _QUEUED,
    Problem.WORKERS_BEHIND: _QUEUED,
    Problem.QUEUE_STALLED: _QUEUED,
    Problem.RUN_UNKNOWN_TO_WORKER: _QUEUED,
    Problem.TASK_UNKNOWN_TO_WORKER: _QUEUED,
    Problem.NO_BROKER: _OVERDUE,
    Problem.RUN_OVERDUE: _OVERDUE,
    Problem.RUN_STUCK: _RUNNING,
    Problem.RUN_OVERLONG: _RUNNING,
    Problem.EVERY_RUN_FAILS: _FAILED,
    Problem.JOBS_FAILING: _FAILING_JOBS,
    Problem.QUARANTINED: FilteredList(Job, {"state": "quarantined"}),
    Problem.UNKNOWN_TARGET: FilteredList(Job, {"enabled__exact": "1", "kind": "unknown"}),
    Problem.JOB_AUTO_PAUSED: FilteredList(
        Job, {"enabled__exact": "0", "pause_reason__startswith": AUTO_PAUSED}
    ),
    Problem.ALL_JOBS_PAUSED: FilteredList(Job, {"state": "paused"}),
    Problem.JOB_BACKLOG: FilteredList(Run, {"state__exact": "waiting"}),
    Problem.FREEZE_WITHOUT_END: FilteredList(Freeze, {}),
    Problem.CURSOR_OVERDUE: FilteredList(Job, {"state": OVERDUE}),
}
"""The list that shows the rows behind a problem. All other problems link to the list of nodes."""


LONGEST_CAUSE = 160
"""The maximum number of characters of a cause."""
CACHE_SECONDS = 10.0
_cache: dict[str, tuple[float, SystemFacts]] = {}
"""The facts that were read last, by database, with the monotonic time."""


class HealthLink(NamedTuple):
    text: str
    url: str


@dataclass(frozen=True, slots=True)
class HealthLine:
    """One problem, or the message that there is none."""

    summary: str
    remedy: str = ""
    kind: str = "ok"
    """One of ``ok``, ``warning`` and ``error``."""
    rows: HealthLink | None = None
    """The list of the rows behind the problem. None if the user may not view it."""
    cause: HealthLink | None = None
    """The latest incident behind the problem: its job and error. None if none is visible."""
    is_freeze: bool = False
    """Whether the line only names freezes. Pages with the banner of a freeze hide it."""


def context(viewer: Viewer, *, allow_cached: bool = False) -> dict[str, Any]:
    """Return the lines as ``health``, most urgent first, with only the names the user may see.

    With ``allow_cached``, the facts may be up to ``CACHE_SECONDS`` seconds old. The pages of all
    users in this process then share the queries.
    """
    facts = _cached_facts() if allow_cached else _read_facts(viewer.now)
    verdict = assess(_visible(facts, viewer))
    return {"health": list(_lines(verdict, viewer)), "status": verdict.status.value}


def clear_cache() -> None:
    """Forget the facts, as tests need between two states of the database."""
    _cache.clear()


def _cached_facts() -> SystemFacts:
    database = alias_for(Run)
    at, facts = _cache.get(database, (0.0, None))
    if facts is None or monotonic() - at > CACHE_SECONDS:
        facts = _read_facts()
        _cache[database] = (monotonic(), facts)
    return facts


def _read_facts(now: datetime | None = None) -> SystemFacts:
    with limited_lock_waits(alias_for(Run)):
        return read_facts(now=now, serves_requests=True)


def _visible(facts: SystemFacts, viewer: Viewer) -> SystemFacts:
    """Hide the names of jobs unless the user may see every job, and the names of nodes likewise."""
    return facts.visible(
        jobs=viewer.may_view(Job) and not viewer.scope.narrows(Job),
        nodes=viewer.may_view(Node) and not viewer.scope.narrows(Node),
    )


def _lines(verdict: Verdict, viewer: Viewer) -> Iterator[HealthLine]:
    for issue in verdict.issues:
        summary, remedy = issue.summary.translate(translation), issue.remedy.translate(translation)
        listing = _LISTINGS.get(issue.problem, FilteredList(Node, {}))
        rows, cause = _rows(listing, viewer), _cause(issue.problem, viewer)
        yield HealthLine(summary, remedy, issue.severity.value, rows, cause)
    if not verdict.issues:
        summary = verdict.summary.translate(translation)
        if verdict.names_failed_jobs:
            rows, cause = _rows(_FAILING_JOBS, viewer), _cause(None, viewer)
            yield HealthLine(summary, rows=rows, cause=cause)
        else:
            yield HealthLine(summary, is_freeze=bool(verdict.facts.freezes))


def _cause(problem: Problem | None, viewer: Viewer) -> HealthLink | None:
    incident = latest_incident(problem, viewer.scope) if viewer.may_view(Job, Incident) else None
    if incident is None:
        return None
    text = with_ellipsis(str(incident), LONGEST_CAUSE)
    return HealthLink(text, change_url(incident, viewer.site))


def _rows(listing: FilteredList, viewer: Viewer) -> HealthLink | None:
    if not viewer.may_view(listing.model):
        return None
    filters = listing.filters
    if listing.due_before_lookup:
        # Rounded, so that the section stays the same for a while. The list has all overdue rows and
        # may have some that are due but not overdue yet.
        step = takeover_time()
        before = viewer.now - (viewer.now - BEGIN) % step
        filters = {**filters, listing.due_before_lookup: before.isoformat()}
    texts = {Run: _("View runs"), Job: _("View jobs"), Node: _("View nodes")}
    url = list_url(listing.model, viewer.site, **filters)
    return HealthLink(texts[listing.model], url)
