"""Render the times of an attempt, each with the wait before it, and its duration."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.utils.html import format_html
from django.utils.translation import gettext as _

from django_dcron.admin.display import duration_or_empty, render_exact_time, render_muted
from django_dcron.diagnosis.run_durations import run_duration
from django_dcron.models import Attempt, Run
from django_dcron.policies.lifecycle import Outcome


def render_due_time(
    attempt: Attempt, near: datetime | None = None, before: Attempt | None = None
) -> str:
    """Render the due time. ``before`` is the previous attempt, whose end starts the wait."""
    return _time_with_wait(before.finished_at if before else None, attempt.due_at, near)


def render_dispatch_time(attempt: Attempt, near: datetime | None = None) -> str:
    return _time_with_wait(attempt.due_at, attempt.queued_at, near)


def render_start_time(attempt: Attempt, near: datetime | None = None) -> str:
    return _time_with_wait(attempt.queued_at or attempt.due_at, attempt.started_at, near)


def render_duration(timed: Run | Attempt) -> str:
    """Render the duration. That of a lost attempt includes the time without heartbeats."""
    duration = duration_or_empty(run_duration(timed))
    if isinstance(timed, Attempt) and timed.outcome == Outcome.LOST:
        return format_html("{}{}", duration, render_muted(_("until it was declared lost")))
    return duration


def _time_with_wait(before: datetime | None, at: datetime | None, near: datetime | None) -> str:
    """Render ``at`` with the time since ``before``.

    Several processes write the times, so they may be out of order by milliseconds. Such a wait is
    shown as zero.
    """
    time = render_exact_time(at, near)
    if before is None or at is None:
        return time
    wait = _("after %(time)s") % {"time": duration_or_empty(max(at - before, timedelta()))}
    return format_html("<div>{}{}</div>", time, render_muted(wait))
