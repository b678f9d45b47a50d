"""Texts of the dashboard's timeline: the titles of runs and occurrences, notes and the caption."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.utils.formats import number_format
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.admin.display import duration_or_empty
from django_dcron.diagnosis.job_state import problem_of
from django_dcron.diagnosis.timeline import (
    JOBS_COUNTED,
    Lane,
    OccurrenceStretch,
    RunStretch,
    Timeline,
)
from django_dcron.models import Job
from django_dcron.models.run import STATE_LABELS
from django_dcron.policies.lifecycle import State

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

_LABELS: dict[str, StrOrPromise] = dict(STATE_LABELS)


def was_executed(runs: RunStretch) -> bool:
    """Return whether the runs ran or are running. A run that waits for a retry doesn't count."""
    return runs.started_at is not None and (
        runs.finished_at is not None or runs.state == State.RUNNING
    )


def runs_title(job: Job, runs: RunStretch) -> str:
    values = {
        "job": job,
        "state": _LABELS[runs.state],
        "number": runs.number,
        "at": time_of(runs.scheduled_at),
    }
    if runs.number > 1:
        values["last"] = time_of(runs.last_scheduled_at)
        title = _("%(job)s: %(state)s, %(number)d runs scheduled from %(at)s to %(last)s") % values
    elif runs.started_at is None or not was_executed(runs):
        title = _("%(job)s: %(state)s, scheduled %(at)s") % values
    else:
        values["late"] = duration_or_empty(max(runs.started_at - runs.due_at, timedelta()))
        if runs.finished_at is None or runs.state == State.RUNNING:
            values["started"] = time_of(runs.started_at)
            title = (
                _("%(job)s: %(state)s since %(started)s, scheduled %(at)s, %(late)s late") % values
            )
        else:
            values["took"] = duration_or_empty(runs.finished_at - runs.started_at)
            title = _("%(job)s: %(state)s, scheduled %(at)s, %(late)s late, took %(took)s") % values
    if runs.missed_before:
        missed = ngettext(
            "Also counts %(missed)d earlier missed occurrence.",
            "Also counts %(missed)d earlier missed occurrences.",
            runs.missed_before,
        )
        title += "\n" + missed % {"missed": runs.missed_before}
    return title


def upcoming_title(job: Job, stretch: OccurrenceStretch) -> str:
    values = {"job": job, "first": time_of(stretch.first), "last": time_of(stretch.last)}
    if stretch.first == stretch.last:
        return _("%(job)s: due %(first)s") % values
    return _("%(job)s: due several times per minute, from %(first)s to %(last)s") % values


def without_run_title(job: Job, stretch: OccurrenceStretch) -> str:
    values = {"job": job, "first": time_of(stretch.first), "last": time_of(stretch.last)}
    if stretch.first == stretch.last:
        return _("%(job)s: expected at %(first)s, but there is no run") % values
    return _("%(job)s: expected from %(first)s to %(last)s, but there are no runs") % values


def note(lane: Lane) -> str:
    """Return the next occurrence after the timeline's end, or why there is none."""
    if lane.next_at is None and problem_of(lane.job):
        return _("Quarantined")
    if lane.job.is_finished:
        return _("Finished")
    if lane.job.is_paused:
        return _("Paused")
    if lane.next_at is None:
        return ""
    return _("Next %(time)s") % {"time": f"{localtime(lane.next_at):%Y-%m-%d %H:%M}"}


def caption(data: Timeline, shows_runs: bool) -> str:
    if data.jobs <= len(data.lanes):
        return ngettext(
            "%(number)d job, from one hour ago to one hour ahead.",
            "%(number)d jobs, from one hour ago to one hour ahead.",
            data.jobs,
        ) % {"number": data.jobs}
    many = _("more than %(number)s") % {"number": number_format(JOBS_COUNTED, force_grouping=True)}
    number = number_format(data.jobs, force_grouping=True)
    values = {"lanes": len(data.lanes), "jobs": number if data.jobs <= JOBS_COUNTED else many}
    if shows_runs:
        return (
            _(
                "Showing %(lanes)d of %(jobs)s jobs: running, recently failed or due next. Use the "
                "filter to find others."
            )
            % values
        )
    return (
        _("Showing %(lanes)d of %(jobs)s jobs: those due next. Use the filter to find others.")
        % values
    )


def time_of(instant: datetime) -> str:
    """Format the time, with the date unless it's today."""
    local = localtime(instant)
    return (
        f"{local:%H:%M:%S}" if local.date() == localtime().date() else f"{local:%Y-%m-%d %H:%M:%S}"
    )
