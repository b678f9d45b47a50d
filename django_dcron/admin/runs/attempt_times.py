"""An attempt's times, each with the wait before it."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.utils.html import format_html
from django.utils.translation import gettext as _

from django_dcron.admin.display import exact_moment, quiet, span
from django_dcron.models import Attempt


def due(attempt: Attempt, near: datetime | None = None, before: Attempt | None = None) -> str:
    """``before``: the attempt before it, after whose end it was put off."""
    return _after(before.finished_at if before else None, attempt.due_at, near)


def handed_over(attempt: Attempt, near: datetime | None = None) -> str:
    return _after(attempt.due_at, attempt.queued_at, near)


def started(attempt: Attempt, near: datetime | None = None) -> str:
    return _after(attempt.queued_at or attempt.due_at, attempt.started_at, near)


def _after(before: datetime | None, at: datetime | None, near: datetime | None) -> str:
    """Several processes write the times, milliseconds apart: no wait is less than nothing."""
    shown = exact_moment(at, near)
    if before is None or at is None:
        return shown
    wait = _("after %(time)s") % {"time": span(max(at - before, timedelta()))}
    return format_html("<div>{}{}</div>", shown, quiet(wait))
