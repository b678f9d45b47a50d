"""The page of a run: state, reason, attempts with their texts, previous and next run.

Invariants:

- While the run is unfinished, two parts of the page refresh: the status and the attempts.
- Once the run is final, the whole page is reloaded, so that it shows the right buttons.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib import admin
from django.db.models.functions import Left
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.admin.auto_refresh import PagePart
from django_dcron.admin.display import (
    EMPTY,
    duration_or_empty,
    link,
    list_url,
    may_view,
    render_exact_time,
    render_time,
    state_badge,
)
from django_dcron.admin.incident_badge import incident_badge
from django_dcron.admin.lists.filters import WorkerFilter
from django_dcron.admin.runs import attempt_times
from django_dcron.admin.runs.attempt_texts import (
    TRUNCATION,
    AttemptText,
    texts_of,
    with_log_length,
)
from django_dcron.admin.runs.attempt_timeline import (
    AttemptTimeline,
    draw_attempt_timeline,
)
from django_dcron.admin.runs.comparison import (
    ComparedRun,
    Comparison,
    EarlierRuns,
    compare,
    expected_end_sentence,
)
from django_dcron.admin.runs.definition import ShownDefinition, definitions_of, shown_definitions
from django_dcron.admin.runs.progress import Progress, progress_of
from django_dcron.admin.runs.state_sentences import WITHOUT_TIMEOUT, state_sentences
from django_dcron.admin.visibility import admin_scope
from django_dcron.conf import settings
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.not_retried import why_not_retried
from django_dcron.diagnosis.phases import phases_of_attempts
from django_dcron.diagnosis.run_durations import start_delay
from django_dcron.diagnosis.run_history import EMPTY_LOG, replacing_run
from django_dcron.jobs.representation import Document
from django_dcron.models import Attempt, Definition, Incident, Job, Node, Run
from django_dcron.models.run import RunQuerySet
from django_dcron.policies.lifecycle import State
from django_dcron.utils.bounded_text import with_ellipsis

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

ATTEMPTS_SHOWN = 10
REFRESH_EVERY = 2
"""Seconds between two refreshes."""
PARTS = ("status", "attempts")
EXCERPT_LENGTH = 200
"""Characters to show of an earlier attempt's message."""


def run_page_part(run: Run, name: str, site: admin.AdminSite) -> PagePart:
    url = reverse("admin:django_dcron_run_part", args=[run.pk, name], current_app=site.name)
    interval = None if run.is_final else REFRESH_EVERY
    return PagePart(f"dcron-{name}", f"admin/django_dcron/run/{name}.html", url, interval)


@dataclass(frozen=True, slots=True)
class EarlierAttempt:
    """An attempt before the latest one, with its times as HTML."""

    attempt: Attempt
    due: str
    dispatched: str
    started: str


class RunPage:
    """The data of the page.

    A property queries the database only when a template reads it, so a refresh of one part loads
    only the data of that part.
    """

    def __init__(self, run: Run, request: HttpRequest, site: admin.AdminSite):
        self.run = run
        self.shows_attempts = may_view(request, Attempt, site)
        self.shows_jobs = may_view(request, Job, site)
        self.shows_nodes = may_view(request, Node, site)
        self.scope = admin_scope(request, site)
        self._request, self._site = request, site

    @cached_property
    def now(self) -> datetime:
        return database_now(alias_for(Run))

    @cached_property
    def attempts(self) -> list[Attempt]:
        """The latest attempts, newest first, without their long texts."""
        if not self.shows_attempts:
            return []
        attempts = self.scope.attempts.filter(run=self.run.pk)
        latest = (
            with_log_length(attempts.order_by("-number"))
            .defer(*TRUNCATION)
            .annotate(excerpt=Left("message", EXCERPT_LENGTH))
        )
        return list(latest[:ATTEMPTS_SHOWN])

    @property
    def number_of_attempts(self) -> int:
        """The number of all attempts, or 0 if the page lists them all."""
        return self.attempts[0].number if self.attempts and self.attempts[-1].number > 1 else 0

    @property
    def latest(self) -> Attempt | None:
        return self.attempts[0] if self.attempts else None

    @property
    def earlier_attempts(self) -> list[EarlierAttempt]:
        """The attempts before the latest one, newest first."""
        near = self.run.scheduled_at
        # Each attempt with the one before it. Attempts are sorted newest first.
        pairs = zip_longest(self.attempts[1:], self.attempts[2:])
        return [
            EarlierAttempt(
                attempt,
                due=attempt_times.render_due_time(attempt, near, before),
                dispatched=attempt_times.render_dispatch_time(attempt, near),
                started=attempt_times.render_start_time(attempt, near),
            )
            for attempt, before in pairs
        ]

    @cached_property
    def _definitions(self) -> dict[UUID, Definition]:
        return definitions_of(self.attempts) if self.shows_jobs else {}

    @property
    def definitions(self) -> list[ShownDefinition]:
        """The definitions that the latest attempts executed, newest first."""
        if not self.shows_jobs:
            return []
        return shown_definitions(self.attempts, self._definitions, self.run.job)

    @property
    def latest_content(self) -> Document:
        """The latest attempt's definition; empty if it is unrecorded or the user may not see it."""
        key = self.latest.definition_id if self.latest else None
        definition = self._definitions.get(key) if key else None
        return {} if definition is None else definition.content

    @cached_property
    def texts(self) -> dict[str, AttemptText]:
        """The texts of the latest attempt, by name."""
        return texts_of(self.latest, self._site) if self.latest else {}

    @property
    def empty_log(self) -> StrOrPromise:
        return EMPTY_LOG

    @property
    def progress(self) -> Progress | None:
        return progress_of(self.latest) if self.latest else None

    @property
    def heartbeat_interval(self) -> timedelta:
        return settings.RUN_LEASE / 3

    @property
    def timeline(self) -> AttemptTimeline | None:
        if not self.shows_attempts:
            return None
        phases = phases_of_attempts(self.run, self.attempts[::-1], self.now)
        return draw_attempt_timeline(
            phases, self.run.state, None if self.run.is_final else self.now
        )

    @property
    def badge(self) -> str:
        return state_badge(self.run.state)

    @property
    def sentences(self) -> list[SafeString]:
        run = self.run
        sentences = [*state_sentences(run, self.now)]
        if self._has_no_timeout:
            sentences.append(format_html("{}", WITHOUT_TIMEOUT[run.job.overlap]))
        if not_retried := self._not_retried:
            sentences.append(not_retried)
        if expected_end := self._expected_end:
            sentences.append(expected_end)
        if newer := replacing_run(run):
            at = link(newer, self._site, render_time(newer.scheduled_at, run.scheduled_at))
            sentences.append(format_html(_("The newer run at {time} replaces this one."), time=at))
        if run.missed_before:
            text = ngettext(
                "This run also counts {count} earlier missed occurrence, scheduled at {time}.",
                "This run also counts {count} earlier missed occurrences, the first scheduled at "
                "{time}.",
                run.missed_before,
            )
            sentences.append(
                format_html(text, count=run.missed_before, time=render_time(run.missed_from))
            )
        return sentences

    @property
    def _has_no_timeout(self) -> bool:
        """Whether the running attempt is known to have started without a timeout."""
        latest = self.latest
        is_running = self.run.state == State.RUNNING
        is_known = latest is not None and latest.number == self.run.attempt and self.latest_content
        return bool(is_running and is_known and not self.latest_content.get("timeout"))

    @property
    def _not_retried(self) -> SafeString | None:
        latest = self.latest
        if self.run.state != State.FAILED or latest is None or latest.number != self.run.attempt:
            return None
        traceback = self.texts["traceback"].text
        failure = (latest.number, latest.outcome, latest.exception_class, traceback)
        text = why_not_retried(*failure, self.latest_content)
        return format_html("{}", text) if text else None

    @property
    def _expected_end(self) -> SafeString | None:
        if self.run.state != State.RUNNING:
            return None
        return expected_end_sentence(self.run, self._earlier.usual_duration, self.now)

    @cached_property
    def _earlier(self) -> EarlierRuns:
        return EarlierRuns(self.run, self.scope)

    @cached_property
    def comparison(self) -> Comparison | None:
        this = ComparedRun(self.run, self.latest, self.latest_content)
        return compare(this, self._earlier, self.scope, self._site)

    @cached_property
    def incident(self) -> SafeString | None:
        """A link to the incident of the latest failure, with its state; None without one.

        Failures that no node has grouped yet have none.
        """
        if self.run.state not in (State.FAILED, State.PENDING, State.QUEUED, State.RUNNING):
            return None
        if not may_view(self._request, Incident, self._site):
            return None
        incidents = self.scope.rows(Incident)
        if self.shows_attempts and self.attempts:
            key = next((each.incident for each in self.attempts if each.incident), None)
            found = incidents.filter(pk=key).first() if key else None
        elif self.run.state == State.FAILED:
            found = incidents.filter(job=self.run.job_id, last_run=self.run.pk).first()
        else:
            found = None
        if found is None:
            return None
        text = with_ellipsis(found.title, EXCERPT_LENGTH)
        return format_html("{} {}", link(found, self._site, text), incident_badge(found.state))

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Pairs of label and value, without unknown values."""
        run, timed = self.run, self._run_or_attempt
        near = run.scheduled_at
        max_attempts = max(run.attempt, run.job.max_attempts)
        attempt = _("%(attempt)d of %(most)d") % {"attempt": run.attempt, "most": max_attempts}
        shows_attempt = run.started_at is not None or not run.is_final
        is_running = run.state == State.RUNNING
        facts = [
            (_("scheduled"), render_time(run.scheduled_at)),
            (_("claimed"), render_time(run.claimed_at, near)),
            (_("due"), render_time(run.due_at, near) if run.due_at != run.scheduled_at else EMPTY),
            (_("sent to worker"), render_time(run.sent_at, near)),
            (_("started"), render_exact_time(timed.started_at, near)),
            (_("finished"), render_exact_time(timed.finished_at, near)),
            (_("start delay"), duration_or_empty(start_delay(run))),
            (_("duration"), attempt_times.render_duration(timed)),
            (_("attempt"), attempt if shows_attempt else EMPTY),
            (_("deliveries"), str(run.deliveries) if run.deliveries > 1 else EMPTY),
            (_("worker"), self._worker_link),
            (_("node"), self._node_link),
            (_("heartbeat"), render_time(run.heartbeat_at, near) if is_running else EMPTY),
        ]
        return [(label, value) for label, value in facts if value != EMPTY]

    @property
    def _run_or_attempt(self) -> Run | Attempt:
        """The row with the times to show: the current attempt's, or else the run's.

        Workers write the two rows a moment apart, so times of both together wouldn't match.
        """
        return self.latest if self.latest and self.latest.number == self.run.attempt else self.run

    @property
    def _worker_link(self) -> str:
        if self.latest is None:
            return EMPTY
        # The list covers only the latest attempts before the end of its range. A range that ends
        # just after this attempt therefore includes it.
        until = self.latest.started_at.replace(second=0, microsecond=0) + timedelta(minutes=1)
        lookups = {
            str(WorkerFilter.parameter_name): self.latest.worker,
            "started_at__lt": until.isoformat(),
        }
        attempts = list_url(Attempt, self._site, **lookups)
        return format_html('<a href="{}">{}</a>', attempts, self.latest.worker)

    @property
    def _node_link(self) -> str:
        """A link to the node, or its id if the row was deleted or the user may not view nodes."""
        if not self.run.node:
            return EMPTY
        node = self.scope.rows(Node).filter(pk=self.run.node).first() if self.shows_nodes else None
        return link(node, self._site) if node else self.run.node

    @cached_property
    def previous(self) -> Run | None:
        """The job's previous run, in the order of ``scheduled_at``."""
        before = self._runs_of_job.filter(scheduled_at__lt=self.run.scheduled_at)
        return before.order_by("-scheduled_at").first()

    @cached_property
    def next(self) -> Run | None:
        after = self._runs_of_job.filter(scheduled_at__gt=self.run.scheduled_at)
        return after.order_by("scheduled_at").first()

    @property
    def _runs_of_job(self) -> RunQuerySet:
        return self.scope.runs.filter(job=self.run.job_id)

    def context(self) -> dict[str, Any]:
        return {"page": self, "run": self.run}
