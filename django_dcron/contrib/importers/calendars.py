"""Compare the calendars of an export with the existing ones, and write them before the jobs.

Invariants:

- Changed dates affect all jobs that name the calendar, including jobs outside the export. A warning
  counts them.
- A calendar isn't written if a job that names it can't be imported. The calendar alone could leave
  that job without any occurrence.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from django_dcron import control
from django_dcron.contrib.importers.entry_plans import (
    DIFFERENCES,
    PROBLEMS,
    EntryPlan,
    ImportOutcome,
)
from django_dcron.contrib.importers.source_contents import SourceCalendar
from django_dcron.contrib.importers.writing import why_refused
from django_dcron.db.routing import alias_for
from django_dcron.models import Calendar, Job
from django_dcron.utils.counts import number_of

WITHOUT_CALENDAR = "calendar: the calendar can't be imported"


@dataclass(frozen=True, slots=True)
class CalendarPlan:
    """The action for one calendar, or why there is none."""

    outcome: ImportOutcome
    name: str
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Maps fields to old and new values.

    For a new calendar, all fields, with None as the old value.
    """
    calendar: Calendar | None = field(default=None, repr=False)
    """The calendar to save. None: it is refused."""


def compare_calendars(source_calendars: Iterable[SourceCalendar]) -> list[CalendarPlan]:
    """Compare calendars, in the order of ``source_calendars``, without writing."""
    entries = list(source_calendars)
    rows = Calendar.objects.using(alias_for(Calendar)).in_bulk(
        [calendar.name for calendar in entries]
    )
    return [_plan(calendar, rows.get(calendar.name)) for calendar in entries]


def calendars_to_save(plans: Iterable[CalendarPlan]) -> dict[str, Calendar]:
    """Return the calendars to save by name, for the comparison of the jobs that name them."""
    return {plan.name: plan.calendar for plan in plans if plan.calendar is not None}


def refuse_without_calendar(
    unwritten: Collection[str], plans: Iterable[EntryPlan]
) -> list[EntryPlan]:
    """Refuse the jobs that name a calendar in ``unwritten``."""
    return [
        replace(plan, outcome=ImportOutcome.REFUSED, reasons=(WITHOUT_CALENDAR,), job=None)
        if plan.job is not None and plan.job.calendar_id in unwritten
        else plan
        for plan in plans
    ]


def refuse_for_problem_jobs(
    plans: Iterable[CalendarPlan], jobs: Iterable[EntryPlan]
) -> list[CalendarPlan]:
    """Return the plans, with refusals for calendars that a job with a problem names.

    ``jobs``: the plans of the jobs, compared with the calendars of ``calendars_to_save``.
    """
    problem_jobs = {
        name: plan
        for plan in jobs
        if plan.outcome in PROBLEMS
        for name in (*plan.entry.calendars, plan.entry.values.get("calendar"))
    }
    return [
        _refused_for_job(plan, problem_jobs[plan.name])
        if plan.outcome in DIFFERENCES and plan.name in problem_jobs
        else plan
        for plan in plans
    ]


def apply_calendar_plans(plans: Iterable[CalendarPlan]) -> Iterator[CalendarPlan]:
    """Write the calendars and yield each one when done.

    A calendar is refused if it was changed since the comparison.
    """
    for plan in plans:
        yield _write(plan) if plan.outcome in DIFFERENCES else plan


def _plan(source_calendar: SourceCalendar, before: Calendar | None) -> CalendarPlan:
    if source_calendar.refused:
        return CalendarPlan(ImportOutcome.REFUSED, source_calendar.name, (source_calendar.refused,))
    if before is None:
        changes = {name: (None, value) for name, value in source_calendar.values.items()}
        calendar = Calendar(name=source_calendar.name, **source_calendar.values)
        return CalendarPlan(
            ImportOutcome.CREATE, source_calendar.name, changes=changes, calendar=calendar
        )
    changes = {
        name: (getattr(before, name), value)
        for name, value in source_calendar.values.items()
        if getattr(before, name) != value
    }
    if not changes:
        return CalendarPlan(ImportOutcome.SAME, source_calendar.name, calendar=before)
    calendar = copy.copy(before)
    for name, (_old, value) in changes.items():
        setattr(calendar, name, value)
    return CalendarPlan(
        ImportOutcome.CHANGE,
        source_calendar.name,
        warnings=_affected_jobs_note(before) if "dates" in changes else (),
        changes=changes,
        calendar=calendar,
    )


def _refused_for_job(plan: CalendarPlan, job: EntryPlan) -> CalendarPlan:
    reason = f"not saved, because job {job}, which uses it, can't be imported"
    return replace(
        plan, outcome=ImportOutcome.REFUSED, reasons=(reason,), warnings=(), calendar=None
    )


def _affected_jobs_note(calendar: Calendar) -> tuple[str, ...]:
    number = Job.objects.using(alias_for(Job)).filter(calendar=calendar.pk).count()
    return (f"this also affects {number_of(number, 'existing job')}",) if number else ()


def _write(plan: CalendarPlan) -> CalendarPlan:
    assert plan.calendar is not None  # noqa: S101 (for the type checker)
    refused = why_refused(partial(control.save_calendar, plan.calendar))
    return (
        replace(plan, outcome=ImportOutcome.REFUSED, reasons=refused, calendar=None)
        if refused
        else plan
    )
