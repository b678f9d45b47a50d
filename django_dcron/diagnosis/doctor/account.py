"""Account for occurrences: compare each job's occurrences in a window with its runs.

Invariants:

- Only a job's current definition can be checked, from the time its cursor was placed for it. A
  paused job isn't checked.
- An occurrence must have a row once the cursor has passed it. A cursor that stays in the past is a
  separate finding (see ``jobs``).
- Pruning deletes old rows, failures last. A gap counts as pruned history if it is older than all
  finished rows of the job, except failed and backfilled ones. In addition, the statistics must
  count more runs than the job has rows. Any other gap is a loss.
- Nodes keep working during the check. Data is read in an order that makes concurrent changes
  harmless: cursors, then rows, then statistics.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.db.models import OuterRef, Subquery

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.doctor.comparison import (
    Differences,
    Occurrences,
    RunColumns,
    compare_occurrences,
    occurrences,
)
from django_dcron.diagnosis.doctor.findings import Code, Findings
from django_dcron.diagnosis.doctor.window import (
    Window,
    format_moment,
    format_times,
    job_subject,
)
from django_dcron.diagnosis.job_state import cursor_of
from django_dcron.exceptions import InvalidSchedule
from django_dcron.jobs.placement import matches_definition, timetable_of
from django_dcron.models import Cursor, Job, Run, Statistics
from django_dcron.models.statistics import pending_counts
from django_dcron.policies.lifecycle import FINAL, State, Trigger
from django_dcron.runs.retention import oldest_kept, with_pruned_history
from django_dcron.schedules.timetable import MICROSECOND, Timetable
from django_dcron.utils.counts import number_of

NO_LIMIT = 10**9


@dataclass
class Totals:
    """Totals of an examination."""

    jobs: int = 0
    occurrences: int = 0
    runs: int = 0
    counted_later: int = 0
    """The number of occurrences that a later run counts as missed."""
    since_change: int = 0
    """The number of jobs checked only from their latest change on."""
    pruned: int = 0
    """The number of jobs whose history begins within the window, because older rows were pruned."""
    truncated: int = 0
    """The number of jobs of which only the latest occurrences were checked."""


@dataclass(frozen=True, slots=True)
class AccountedJob:
    """A job, its timetable and the occurrences for which it must have rows."""

    job: Job
    timetable: Timetable
    expected: Occurrences


class _Period(NamedTuple):
    """The time ``(after, until]`` in which a job must have a row for each occurrence."""

    after: datetime
    until: datetime
    phase: datetime
    """One of the job's occurrences."""


class _TimesAroundWindow(NamedTuple):
    """Two times of a job's rows that may explain a gap."""

    oldest_kept: datetime | None = None
    """The oldest finished row that is neither failed nor backfilled.

    A backfilled run may be older than the kept history.
    """
    missed_from: datetime | None = None
    """The time from which the first row after the window counts missed occurrences."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Occurrences of a job that no row in the window accounts for."""

    job: Job
    missing: tuple[datetime, ...]


def examine_jobs(jobs: list[Job], window: Window, findings: Findings, totals: Totals) -> None:
    """Account for a batch of jobs.

    The number of queries doesn't depend on the size of the batch.
    """
    entries = list(_entries(jobs, window, totals))
    rows = _rows(entries, window)
    gaps = []
    for entry in entries:
        job_rows = rows[entry.job.pk]
        differences = compare_occurrences(entry.expected, job_rows, entry.timetable)
        totals.jobs += 1
        totals.occurrences += len(entry.expected.instants)
        totals.counted_later += differences.counted_later
        totals.runs += sum(row.trigger == Trigger.SCHEDULE for row in job_rows)
        _report(entry.job, differences, findings)
        if differences.missing:
            gaps.append(Gap(entry.job, differences.missing))
    for gap in _unexplained_gaps(gaps, window, totals) if gaps else ():
        _report_gap(gap, findings)
    _check_statistics([entry.job for entry in entries], rows, findings)


def _entries(jobs: Iterable[Job], window: Window, totals: Totals) -> Iterable[AccountedJob]:
    """Yield the entries of the jobs that can be checked.

    Jobs with the same timetable share one computation.
    """
    computed: dict[tuple[Timetable, datetime | None, datetime, datetime], Occurrences] = {}
    for job in jobs:
        period = _period_to_check(job, window)
        if period is None:
            continue
        after, until, phase = period
        totals.since_change += after > window.since
        timetable = timetable_of(job)
        key = (timetable, phase if timetable.schedule.interval else None, after, until)
        if key not in computed:
            limit = NO_LIMIT if window.occurrences_per_job is None else window.occurrences_per_job
            computed[key] = occurrences(timetable, phase, after, until, limit)
        totals.truncated += computed[key].truncated
        yield AccountedJob(job, timetable, computed[key])


def _period_to_check(job: Job, window: Window) -> _Period | None:
    """Return the period in which the job can be checked, or None if it can't be checked."""
    cursor = cursor_of(job)
    if (
        cursor is None
        or cursor.problem
        or cursor.previous_at is None
        or not matches_definition(cursor, job)
    ):
        return None
    if not job.enabled and not (job.is_finished and cursor.next_at is None):
        return None
    try:
        timetable_of(job)
    except InvalidSchedule:
        return None
    until = min(window.until, cursor.previous_at)
    if cursor.next_at is not None:
        # A change of the job withdrew the runs claimed ahead.
        until = min(until, cursor.next_at - MICROSECOND)
    after = accountable_since(cursor, window)
    phase = cursor.next_at or cursor.previous_at
    return _Period(after, until, phase) if after < until else None


def accountable_since(cursor: Cursor, window: Window) -> datetime:
    """Return the time in the window from which on the cursor's definition applies."""
    return window.since if window.steady else max(window.since, cursor.placed_at)


def _rows(entries: Iterable[AccountedJob], window: Window) -> defaultdict[int, list[RunColumns]]:
    """Return the rows of the entries' jobs.

    Jobs are read together only if the lengths of their periods differ by less than a factor of
    about two. Otherwise, a whole day of a job that runs each second would be read, although only
    its last minutes are checked.
    """
    groups: defaultdict[int, list[AccountedJob]] = defaultdict(list)
    for entry in entries:
        groups[int((window.until - entry.expected.after).total_seconds()).bit_length()].append(
            entry
        )
    rows: defaultdict[int, list[RunColumns]] = defaultdict(list)
    for group in groups.values():
        expected = {entry.job.pk: entry.expected for entry in group}
        shown = Run.objects.using(alias_for(Run)).shown_as(Trigger.SCHEDULE, Trigger.BACKFILL)
        runs = shown.filter(
            job__in=expected,
            scheduled_at__gt=min(each.after for each in expected.values()),
            scheduled_at__lte=max(each.until for each in expected.values()),
        )
        for row in map(
            RunColumns._make, runs.values_list(*RunColumns._fields).iterator(chunk_size=5000)
        ):
            if expected[row.job_id].after < row.scheduled_at <= expected[row.job_id].until:
                rows[row.job_id].append(row)
    return rows


def _unexplained_gaps(gaps: list[Gap], window: Window, totals: Totals) -> Iterable[Gap]:
    """Yield the gaps that neither a row after the window nor pruning explains."""
    times = _times_around_window([gap.job.pk for gap in gaps], window)
    before_history = [
        gap.job.pk
        for gap in gaps
        if gap.missing[0] <= (times[gap.job.pk].oldest_kept or window.now)
    ]
    pruned = set() if window.steady else with_pruned_history(before_history)
    for gap in gaps:
        oldest, missed_from = times[gap.job.pk]
        missing = [
            instant for instant in gap.missing if missed_from is None or instant < missed_from
        ]
        if gap.job.pk in pruned:
            totals.pruned += 1
            missing = [instant for instant in missing if oldest is not None and instant > oldest]
        if missing:
            yield Gap(gap.job, tuple(missing))


def _times_around_window(job_ids: list[int], window: Window) -> dict[int, _TimesAroundWindow]:
    runs = Run.objects.filter(job=OuterRef("pk")).order_by("scheduled_at")
    later = runs.filter(trigger=Trigger.SCHEDULE, scheduled_at__gt=window.until)
    jobs = Job.objects.using(alias_for(Job)).filter(pk__in=job_ids).order_by()
    found = jobs.values_list(
        "pk",
        Subquery(oldest_kept().values("scheduled_at")[:1]),
        Subquery(later.values("missed_from")[:1]),
    )
    # A job may have been deleted meanwhile.
    unknown = dict.fromkeys(job_ids, _TimesAroundWindow())
    return unknown | {pk: _TimesAroundWindow(*times) for pk, *times in found}


def _report(job: Job, differences: Differences, findings: Findings) -> None:
    subject = job_subject(job)
    if counted_twice := differences.counted_twice:
        findings.add(
            Code.OCCURRENCE_COUNTED_TWICE,
            subject,
            f"{number_of(len(counted_twice), 'occurrence')} counted twice, as a run and as missed "
            f"by a later run: {format_times(counted_twice)}. Nothing ran twice. Report a bug, with "
            "the logs of the nodes.",
            at=counted_twice[0],
        )
    if off := differences.off_schedule:
        findings.add(
            Code.RUN_OFF_SCHEDULE,
            subject,
            f"{number_of(len(off), 'scheduled run')} not at an occurrence of the schedule: "
            f"{format_times(off)}. This is expected after a tz database update or manual changes "
            "of rows. Otherwise, report a bug.",
            at=off[0],
        )
    for row in differences.miscounted:
        findings.add(
            Code.MISSED_MISCOUNTED,
            subject,
            f"The run at {format_moment(row.scheduled_at)} counts "
            f"{number_of(row.missed_before, 'missed occurrence')} since "
            f"{format_moment(row.missed_from)}, but the schedule has a different number. Report a "
            "bug.",
            at=row.scheduled_at,
        )


def _report_gap(gap: Gap, findings: Findings) -> None:
    number = len(gap.missing)
    findings.add(
        Code.OCCURRENCE_MISSING,
        job_subject(gap.job),
        f"{number_of(number, 'occurrence')} lost, without a run: {format_times(gap.missing)}. Run "
        "the important ones manually. Unless rows were deleted manually, report a bug, with the "
        "logs of the nodes at that time.",
        at=gap.missing[0],
    )


def _check_statistics(
    jobs: list[Job], rows: dict[int, list[RunColumns]], findings: Findings
) -> None:
    """Report statistics that are lower than the number of finished rows.

    A run is counted in the transaction that finishes it, so statistics with their pending counts
    can't be lower than the rows.
    """
    ended: dict[int, Counter[State]] = {}
    for job in jobs:
        ended[job.pk] = Counter(State(row.state) for row in rows[job.pk] if row.state in FINAL)
        ended[job.pk][State.MISSED] += sum(row.missed_before for row in rows[job.pk])
    job_ids = [job.pk for job in jobs]
    pending = pending_counts(job_ids)  # read first, because nodes add them to the statistics
    statistics = Statistics.objects.using(alias_for(Statistics)).in_bulk(job_ids)
    for job in jobs:
        row = statistics.get(job.pk, Statistics())
        for state, number in ended[job.pk].items():
            counted = getattr(row, state.value) + pending.get(job.pk, Counter())[state.value]
            if number > counted:
                findings.add(
                    Code.STATISTICS_BEHIND,
                    job_subject(job),
                    f"{number_of(number, 'run')} {state.value} in the window, but the statistics "
                    f"count only {counted}. Unless rows were written by "
                    "other code than django-dcron, report a bug.",
                )
