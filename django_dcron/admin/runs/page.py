"""What the page of a run shows: how it stands and why, its attempts in time, what they left, and its neighbours.

While the run is unfinished, two parts of the page refresh themselves: how it stands, which changes as time goes by, and what its
attempts left, which changes when a worker writes it. Once the run is final, the whole page is brought anew, with the buttons
that fit it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cached_property
from itertools import zip_longest
from typing import Any

from django.contrib import admin
from django.db.models.functions import Left
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_dcron.admin.display import (
    EMPTY,
    exact_moment,
    link,
    list_url,
    may_view,
    moment,
    span,
    state_badge,
)
from django_dcron.admin.lists.filters import WorkerFilter
from django_dcron.admin.refreshing import Part
from django_dcron.admin.runs import attempt_times
from django_dcron.admin.runs.attempt_texts import CUT, ShownText, texts_of
from django_dcron.admin.runs.attempt_timeline import Timeline, draw
from django_dcron.admin.runs.progress import Progress, progress_of
from django_dcron.admin.visibility import scope_of
from django_dcron.conf import settings
from django_dcron.domain.lifecycle import State
from django_dcron.models import Attempt, Node, Run
from django_dcron.models.database import alias_for, database_now
from django_dcron.models.run import RunQuerySet
from django_dcron.observability.lengths import duration, lateness
from django_dcron.observability.phases import courses_of

ATTEMPTS_SHOWN = 10
REFRESHED_EVERY = 2
"""Seconds."""
PARTS = ("standing", "attempts")
EXCERPT = 200
"""Characters of an earlier attempt's message."""


SENTENCES = {
    State.PENDING: gettext_lazy("It is due at {due}."),
    State.QUEUED: gettext_lazy("It was handed over at {queued}, and waits for a worker."),
    State.WAITING: gettext_lazy("It waits for its turn."),
    State.RUNNING: gettext_lazy("It has been running since {started}."),
    State.SUCCEEDED: gettext_lazy("It succeeded at {finished}."),
    State.FAILED: gettext_lazy("It failed at {finished}."),
    State.SKIPPED: gettext_lazy("It was skipped at {finished}."),
    State.MISSED: gettext_lazy("It was not started in time."),
    State.CANCELLED: gettext_lazy("It was cancelled at {finished}."),
}


def part_of(run: Run, name: str, site: admin.AdminSite) -> Part:
    url = reverse("admin:django_dcron_run_part", args=[run.pk, name], current_app=site.name)
    every = None if run.is_final else REFRESHED_EVERY
    return Part(f"dcron-{name}", f"admin/django_dcron/run/{name}.html", url, every)


class RunPage:
    """Each property asks the database when it is first needed: a part pays for its own."""

    def __init__(self, run: Run, request: HttpRequest, site: admin.AdminSite):
        self.run = run
        self.shows_attempts = may_view(request, Attempt, site)
        self.shows_nodes = may_view(request, Node, site)
        self.scope = scope_of(request, site)
        self._site = site

    @cached_property
    def now(self) -> datetime:
        return database_now(alias_for(Run))

    @cached_property
    def attempts(self) -> list[Attempt]:
        """The latest first; without their long texts."""
        if not self.shows_attempts:
            return []
        attempts = self.scope.attempts.filter(run=self.run.pk)
        latest = attempts.order_by("-number").defer(*CUT).annotate(excerpt=Left("message", EXCERPT))
        return list(latest[:ATTEMPTS_SHOWN])

    @property
    def unlisted(self) -> int:
        """How many attempts were before those."""
        return self.attempts[-1].number - 1 if self.attempts else 0

    @property
    def latest(self) -> Attempt | None:
        return self.attempts[0] if self.attempts else None

    @property
    def earlier(self) -> list[tuple[Attempt, list[str]]]:
        """Each with when it was due, handed over and started."""
        near, pairs = self.run.scheduled_at, zip_longest(self.attempts[1:], self.attempts[2:])
        return [
            (
                attempt,
                [
                    attempt_times.due(attempt, near, before),
                    attempt_times.handed_over(attempt, near),
                    attempt_times.started(attempt, near),
                ],
            )
            for attempt, before in pairs
        ]

    @cached_property
    def texts(self) -> dict[str, ShownText]:
        """The latest attempt's."""
        return texts_of(self.latest, self._site) if self.latest else {}

    @property
    def progress(self) -> Progress | None:
        return progress_of(self.latest) if self.latest else None

    @property
    def beats_every(self) -> timedelta:
        return settings.RUN_LEASE / 3

    @property
    def timeline(self) -> Timeline | None:
        if not self.shows_attempts:
            return None
        courses = courses_of(self.run, self.attempts[::-1], self.now)
        return draw(courses, self.run.state, None if self.run.is_final else self.now)

    @property
    def badge(self) -> str:
        return state_badge(self.run.state)

    @property
    def sentences(self) -> list[SafeString]:
        run = self.run
        found = [_standing(run, self.now)]
        if run.cancel_requested_at and run.state == State.RUNNING:
            told = _("It was told to stop at {time}.")
            found.append(format_html(told, time=moment(run.cancel_requested_at, near=self.now)))
        if run.missed_before:
            stands_for = ngettext(
                "It stands for {count} earlier occurrence that was not started in time, of {time}.",
                "It stands for {count} earlier occurrences that were not started in time, from {time} on.",
                run.missed_before,
            )
            found.append(format_html(stands_for, count=run.missed_before, time=moment(run.missed_from)))
        return found

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Label and value of what is known."""
        run, timed = self.run, self._timed
        near = run.scheduled_at
        most = max(run.attempt, run.job.max_attempts)
        tried = run.started_at is not None or not run.is_final
        found = [
            (_("scheduled"), moment(run.scheduled_at)),
            (_("claimed"), moment(run.claimed_at, near)),
            (_("due"), moment(run.due_at, near) if run.due_at != run.scheduled_at else EMPTY),
            (_("handed over"), moment(run.handed_over_at, near)),
            (_("started"), exact_moment(timed.started_at, near)),
            (_("finished"), exact_moment(timed.finished_at, near)),
            (_("lateness"), span(lateness(run))),
            (_("duration"), span(duration(timed))),
            (
                _("attempt"),
                _("%(attempt)d of %(most)d") % {"attempt": run.attempt, "most": most} if tried else EMPTY,
            ),
            (_("deliveries"), str(run.deliveries) if run.deliveries > 1 else EMPTY),
            (_("worker"), self._worker_link),
            (_("node"), self._node_link),
            (_("heartbeat"), moment(run.heartbeat_at, near) if run.state == State.RUNNING else EMPTY),
        ]
        return [(label, value) for label, value in found if value != EMPTY]

    @property
    def _timed(self) -> Run | Attempt:
        """What says when it ran: the latest attempt's row and the run's are written a moment apart."""
        return self.latest if self.latest and self.latest.number == self.run.attempt else self.run

    @property
    def _worker_link(self) -> str:
        if self.latest is None:
            return EMPTY
        # Up to this attempt: the list does not look at much older ones unless it is told to.
        until = self.latest.started_at.replace(second=0, microsecond=0) + timedelta(minutes=1)
        chosen = {str(WorkerFilter.parameter_name): self.latest.worker, "started_at__lt": until.isoformat()}
        attempts = list_url(Attempt, self._site, **chosen)
        return format_html('<a href="{}">{}</a>', attempts, self.latest.worker)

    @property
    def _node_link(self) -> str:
        """A node that is long gone has no row any more."""
        if not self.run.node:
            return EMPTY
        node = self.scope.rows(Node).filter(pk=self.run.node).first() if self.shows_nodes else None
        return link(node, self._site) if node else self.run.node

    @cached_property
    def previous(self) -> Run | None:
        """The job's run before this one, by the time it was scheduled for."""
        before = self._of_job.filter(scheduled_at__lt=self.run.scheduled_at)
        return before.order_by("-scheduled_at").first()

    @cached_property
    def next(self) -> Run | None:
        after = self._of_job.filter(scheduled_at__gt=self.run.scheduled_at)
        return after.order_by("scheduled_at").first()

    @property
    def _of_job(self) -> RunQuerySet:
        return self.scope.runs.filter(job=self.run.job_id)

    def context(self) -> dict[str, Any]:
        return {"page": self, "run": self.run}


def _standing(run: Run, now: datetime) -> SafeString:
    said = str(SENTENCES[State(run.state)])
    if run.state == State.PENDING and run.due_at <= now:
        said = _("It has been due since {due}, and waits to be handed over.")
    elif run.state == State.PENDING and run.attempt > 1:
        said = _("Attempt {number} is due at {due}.")
    return format_html(
        said,
        number=run.attempt,
        due=moment(run.due_at),
        queued=moment(run.queued_at),
        started=moment(run.started_at),
        finished=moment(run.finished_at, near=run.scheduled_at),
    )
