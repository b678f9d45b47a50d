"""The page of an incident: its latest traceback, its failures over time, and its latest runs."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from functools import cached_property
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_dcron.admin.display import (
    change_url,
    duration_or_empty,
    link,
    list_url,
    may_view,
    outcome_badge,
    render_time,
    state_badge,
    time_ago_text,
)
from django_dcron.admin.incidents.trend import render_trend
from django_dcron.admin.runs.attempt_texts import AttemptText, texts_of
from django_dcron.admin.visibility import admin_scope
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.models import Attempt, Incident, Job, Run
from django_dcron.policies.lifecycle import State

ATTEMPTS_SHOWN = 10
FAILED_ATTEMPTS_READ = 500
"""The number of latest failed attempts whose reruns are counted."""
RERUNS_COUNTED = 2_000
DAYS = 14


class IncidentPage:
    def __init__(self, incident: Incident, request: HttpRequest, site: admin.AdminSite):
        self.incident = incident
        self._request = request
        self._site = site
        self._scope = admin_scope(request, site)
        self._now = database_now(alias_for(Incident))
        self._sees_runs = may_view(request, Run, site)
        self._sees_attempts = may_view(request, Attempt, site)

    @property
    def job(self) -> str:
        job = self.incident.job
        return link(job, self._site) if may_view(self._request, Job, self._site) else str(job)

    @property
    def first_seen(self) -> str:
        return render_time(self.incident.first_seen_at)

    @property
    def last_seen(self) -> str:
        return render_time(self.incident.last_seen_at)

    @property
    def last_seen_ago(self) -> str:
        return time_ago_text(self._now - self.incident.last_seen_at)

    @property
    def returned(self) -> str:
        return render_time(self.incident.returned_at)

    @property
    def resolved(self) -> str:
        return render_time(self.incident.resolved_at)

    @property
    def changed(self) -> str:
        return render_time(self.incident.changed_at)

    @property
    def trend(self) -> SafeString:
        return render_trend(self.incident.trend, self._now, 24, DAYS)

    @property
    def days(self) -> int:
        return DAYS

    @cached_property
    def latest(self) -> Any:
        """The latest failed attempt of the incident that the user may see."""
        return next(iter(self._attempts), None)

    @cached_property
    def texts(self) -> list[AttemptText]:
        """The traceback of the latest attempt, or else its message, in a list of at most one.

        Empty if the user may not see attempts.
        """
        if self.latest is None:
            return []
        texts = texts_of(self.latest, self._site)
        return [texts[name] for name in ("traceback", "message") if texts[name]][:1]

    @cached_property
    def latest_run(self) -> str:
        """A link to the run of the latest failure. A later attempt may have succeeded."""
        if not self._sees_runs or self.incident.last_run is None:
            return ""
        run = self._scope.runs.filter(pk=self.incident.last_run).select_related("job").first()
        return link(run, self._site, render_time(run.scheduled_at)) if run else ""

    @cached_property
    def _attempts(self) -> list[Attempt]:
        if not (self._sees_attempts and self._sees_runs):
            return []
        attempts = self._scope.attempts.filter(incident=self.incident.pk).order_by("-pk")
        short = attempts.prefetch_related("run").defer("log", "traceback", "result", "message")
        return list(short[:ATTEMPTS_SHOWN])

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "url": change_url(attempt.run, self._site),
                "scheduled": render_time(attempt.run.scheduled_at),
                "ended": render_time(attempt.finished_at),
                "number": attempt.number,
                "outcome": outcome_badge(attempt.outcome),
                "took": duration_or_empty(attempt.duration),
                "worker": attempt.worker,
            }
            for attempt in self._attempts
        ]

    @cached_property
    def reruns(self) -> SafeString:
        """The numbers of runs that repeat the latest failed runs, by state; empty without any."""
        if not (self._sees_attempts and self._sees_runs):
            return SafeString("")
        # Filtering by the state of the runs in SQL would read all attempts if most runs succeeded.
        attempts = self._scope.attempts.filter(incident=self.incident.pk).order_by("-pk")
        columns = ("run", "run__rerun_of", "run__claimed_at", "run__state")
        rows = attempts.values_list(*columns)[:FAILED_ATTEMPTS_READ]
        latest: dict[UUID, datetime] = {}  # a rerun of a rerun refers to the original run
        for run, original, claimed_at, state in rows:
            if state == State.FAILED:
                key = original or run
                latest[key] = max(latest.get(key, claimed_at), claimed_at)
        reruns = self._scope.runs.filter(rerun_of__in=latest).order_by("-claimed_at")
        states = reruns.values_list("rerun_of", "state", "claimed_at")[:RERUNS_COUNTED]
        counts = Counter(
            state for original, state, at in states if original and at > latest[original]
        )
        if not counts:
            return SafeString("")
        job = str(self.incident.job_id)
        url = list_url(Run, self._site, job__id__exact=job, rerun_of__isnull="0")
        by_state = [(counts[state], state_badge(state)) for state in State if state in counts]
        return format_html(
            '{} <a href="{}">{}</a>',
            format_html_join(" ", "{} {}", by_state),
            url,
            _("View all reruns of the job"),
        )

    @property
    def runs_url(self) -> str:
        """The list of the job's failed runs; empty if the user may not view runs."""
        job = str(self.incident.job_id)
        failed = {"job__id__exact": job, "state__exact": "failed"}
        return list_url(Run, self._site, **failed) if self._sees_runs else ""
