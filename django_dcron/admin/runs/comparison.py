"""Compare a run with its job's earlier successful runs: usual duration, expected end, differences.

Invariants:

- At most ``RUNS_SEARCHED`` earlier runs are read, through the index of a job's runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from uuid import UUID

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _

from django_dcron.admin.audit_log import shown_change
from django_dcron.admin.display import EMPTY, duration_or_empty, link, render_time
from django_dcron.admin.runs.attempt_texts import log_link, with_log_length
from django_dcron.admin.runs.definition import content_of_attempt
from django_dcron.diagnosis.definitions import changes_between
from django_dcron.diagnosis.figures import percentile
from django_dcron.diagnosis.run_durations import run_duration, start_delay
from django_dcron.diagnosis.scope import Scope
from django_dcron.jobs.representation import Document
from django_dcron.models import Attempt, Job, Run
from django_dcron.policies.lifecycle import State
from django_dcron.targets.shadow import NOT_EXECUTED

RUNS_SEARCHED = 60
USUAL_DURATION_RUNS = 20
"""The usual duration is the median of at most this many successful runs."""
USUAL_DURATION_MIN_RUNS = 3
"""With fewer successful runs, the usual duration is unknown."""
ARGUMENTS_SHOWN = 200
"""The maximum number of characters of the arguments."""


@dataclass(frozen=True, slots=True)
class ComparedFact:
    label: str
    this_run: str
    last_success: str
    is_measured: bool = False
    """Whether the values differ from run to run anyway."""

    @property
    def differs(self) -> bool:
        return not self.is_measured and self.this_run != self.last_success


class EarlierRuns:
    """The job's runs before ``run``, newest first, which one query reads when they are needed."""

    def __init__(self, run: Run, scope: Scope) -> None:
        self._run = run
        self._scope = scope

    @cached_property
    def _succeeded(self) -> list[tuple[UUID, timedelta]]:
        """The keys and durations of the earlier runs that succeeded, without shadow runs."""
        rows = (
            self._scope.runs.filter(job=self._run.job_id, scheduled_at__lt=self._run.scheduled_at)
            .order_by("-scheduled_at")
            .values_list("pk", "state", "reason", "started_at", "finished_at")[:RUNS_SEARCHED]
        )
        return [
            (pk, end - start)
            for pk, state, reason, start, end in rows
            if state == State.SUCCEEDED and reason != NOT_EXECUTED and start and end
        ]

    @property
    def usual_duration(self) -> timedelta | None:
        durations = sorted(duration for _pk, duration in self._succeeded[:USUAL_DURATION_RUNS])
        return percentile(durations, 50) if len(durations) >= USUAL_DURATION_MIN_RUNS else None

    @cached_property
    def last_success(self) -> Run | None:
        """The latest earlier run that succeeded."""
        if not self._succeeded:
            return None
        pk, _duration = self._succeeded[0]
        return self._scope.runs.filter(pk=pk).select_related("job").first()


def expected_end_sentence(run: Run, usual: timedelta | None, now: datetime) -> SafeString | None:
    """Return a sentence about a running run, which changes only when the expected end passes."""
    if run.started_at is None or usual is None:
        return None
    end = run.started_at + usual
    if end <= now:
        text = _("Usually takes {duration}, so this run is slower than usual.")
    else:
        text = _("Usually takes {duration}: expected to end at about {end}.")
    return format_html(text, duration=duration_or_empty(usual), end=render_time(end, near=now))


@dataclass(frozen=True, slots=True)
class ComparedRun:
    run: Run
    latest: Attempt | None
    """The latest attempt; None if the user may not see attempts."""
    content: Document
    """The definition that this attempt ran; empty if it is unrecorded or hidden from the user."""

    @property
    def duration(self) -> timedelta | None:
        """The duration that the run's page shows: of the latest attempt, by its own row if known.

        An attempt's row has the time at which the worker read the run, the run's row has the
        slightly later time at which its start was written.
        """
        is_current = self.latest is not None and self.latest.number == self.run.attempt
        return run_duration(self.latest if self.latest and is_current else self.run)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run that didn't succeed, beside the job's last success."""

    other: Run
    facts: tuple[ComparedFact, ...]
    link: SafeString


def compare(
    this: ComparedRun, earlier: EarlierRuns, scope: Scope, site: admin.AdminSite
) -> Comparison | None:
    """Compare a failed or cancelled run and its latest attempt with the last success."""
    run = this.run
    if run.state not in {State.FAILED, State.CANCELLED} or run.started_at is None:
        return None
    other = earlier.last_success
    if other is None:
        return None
    latest = None
    if this.latest is not None:
        attempts = scope.attempts.filter(run=other.pk).order_by("-number")
        names = ("run", "number", "worker", "release", "definition", "started_at", "finished_at")
        latest = with_log_length(attempts.only(*names)).first()
    content = content_of_attempt(latest) if latest and this.content else {}
    facts = tuple(_facts(this, ComparedRun(other, latest, content), site))
    return Comparison(other, facts, link(other, site, render_time(other.scheduled_at)))


def _facts(this: ComparedRun, other: ComparedRun, site: admin.AdminSite) -> Iterator[ComparedFact]:
    runs = (this.run, other.run)
    durations = [duration_or_empty(each.duration) for each in (this, other)]
    yield _fact(_("duration"), durations, is_measured=True)
    delays = [duration_or_empty(start_delay(run)) for run in runs]
    if delays != [EMPTY, EMPTY]:
        yield _fact(_("start delay"), delays, is_measured=True)
    yield _fact(_("attempt"), [str(run.attempt) for run in runs])
    yield _fact(_("arguments"), [_arguments(run) for run in runs])
    if this.latest is None or other.latest is None:
        return
    attempts = (this.latest, other.latest)
    yield _fact(_("worker"), [attempt.worker for attempt in attempts])
    releases = [attempt.release or EMPTY for attempt in attempts]
    if releases != [EMPTY, EMPTY]:
        yield _fact(_("release"), releases)
    if this.content and other.content:
        for change in changes_between(other.content, this.content):
            field = shown_change(Job, change)
            yield ComparedFact(field.label, field.new, field.old)
    logs = [log_link(attempt, site) for attempt in attempts]
    if logs != [EMPTY, EMPTY]:
        yield _fact(_("log"), logs, is_measured=True)


def _fact(label: str, values: list[str], *, is_measured: bool = False) -> ComparedFact:
    """Return the fact from the values of this run and of the last success."""
    this_run, last_success = values
    return ComparedFact(label, this_run, last_success, is_measured)


def _arguments(run: Run) -> str:
    if run.args is None and run.kwargs is None:
        return _("the job's")
    text = ", ".join(
        json.dumps(value, ensure_ascii=False)
        for value in (run.args, run.kwargs)
        if value is not None
    )
    return Truncator(text).chars(ARGUMENTS_SHOWN)
