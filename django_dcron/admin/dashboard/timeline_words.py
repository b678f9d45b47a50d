"""What the dashboard's timeline says: of its runs and what comes, when one points at them, and of itself."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.utils.formats import number_format
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.admin.display import span
from django_dcron.domain.lifecycle import State
from django_dcron.models import Job
from django_dcron.models.run import STATE_LABELS
from django_dcron.observability.timeline import JOBS_COUNTED, Coming, Lane, Runs, Timeline

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

_LABELS: dict[str, StrOrPromise] = dict(STATE_LABELS)


def has_run(runs: Runs) -> bool:
    """Whether it ran, or runs; one that waits for its next attempt does not."""
    return runs.started_at is not None and (runs.finished_at is not None or runs.state == State.RUNNING)


def about_runs(job: Job, runs: Runs) -> str:
    values = {
        "job": job,
        "state": _LABELS[runs.state],
        "number": runs.number,
        "at": time_of(runs.scheduled_at),
        "last": time_of(runs.last_scheduled_at),
        "started": time_of(runs.started_at or runs.scheduled_at),
        "late": span(max((runs.started_at or runs.due_at) - runs.due_at, timedelta())),
        "took": span(runs.finished_at - runs.started_at) if runs.finished_at and runs.started_at else "",
    }
    if runs.number > 1:
        title = _("%(job)s: %(number)d runs %(state)s, scheduled from %(at)s to %(last)s") % values
    elif not has_run(runs):
        title = _("%(job)s: %(state)s, scheduled %(at)s") % values
    elif runs.state == State.RUNNING:
        title = _("%(job)s: %(state)s since %(started)s, scheduled %(at)s, %(late)s late") % values
    else:
        title = _("%(job)s: %(state)s, scheduled %(at)s, %(late)s late, took %(took)s") % values
    if runs.missed_before:
        missed = ngettext(
            "It also stands for %(missed)d occurrence that was missed.",
            "It also stands for %(missed)d occurrences that were missed.",
            runs.missed_before,
        )
        title += "\n" + missed % {"missed": runs.missed_before}
    return title


def about_coming(job: Job, coming: Coming) -> str:
    values = {"job": job, "first": time_of(coming.first), "last": time_of(coming.last)}
    if coming.first == coming.last:
        return _("%(job)s: due %(first)s") % values
    return _("%(job)s: due more than once a minute, from %(first)s to %(last)s") % values


def note(lane: Lane) -> str:
    """What comes later than the timeline ends, or why nothing does."""
    if not lane.job.enabled:
        return _("paused")
    if lane.next_at is None:
        cursor = getattr(lane.job, "cursor", None)
        return _("out of scheduling") if cursor is not None and cursor.problem else ""
    return _("next %(time)s") % {"time": f"{localtime(lane.next_at):%Y-%m-%d %H:%M}"}


def caption(drawn: Timeline, shows_runs: bool) -> str:
    if drawn.jobs <= len(drawn.lanes):
        return ngettext(
            "%(number)d job: the hour before now and the hour after it.",
            "%(number)d jobs: the hour before now and the hour after it.",
            drawn.jobs,
        ) % {"number": drawn.jobs}
    many = _("more than %(number)s") % {"number": number_format(JOBS_COUNTED, force_grouping=True)}
    counted = number_format(drawn.jobs, force_grouping=True)
    values = {"lanes": len(drawn.lanes), "jobs": counted if drawn.jobs <= JOBS_COUNTED else many}
    if shows_runs:
        return (
            _(
                "%(lanes)d of %(jobs)s jobs: those that run, failed lately or are due next. Others by namespace or name, above."
            )
            % values
        )
    return (
        _("%(lanes)d of %(jobs)s jobs: those that are due next. Others by namespace or name, above.") % values
    )


def time_of(instant: datetime) -> str:
    """With the date if that is not today's."""
    local = localtime(instant)
    return f"{local:%H:%M:%S}" if local.date() == localtime().date() else f"{local:%Y-%m-%d %H:%M:%S}"
