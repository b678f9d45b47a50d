"""The account: for each job, the occurrences its schedule yields in a window against the rows.

What can be asked of the rows, and what cannot:

- They tell about a job's present definition only, so a job is accounted for from when its cursor was placed for that on,
  and a paused one not at all.
- An occurrence is owed a row once the cursor has passed it. What the cursor has not reached yet is not lost; a cursor
  that stands in the past is a finding of its own (``jobs``).
- Pruning takes old rows, failures last. A gap older than all other finished rows of a job whose statistics count more than
  its rows is pruned history. Any other gap is a loss.
- Nodes go on while we read. Whatever is compared is read in the order that makes a change in between harmless: cursors,
  then rows, then statistics.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import OuterRef, Subquery

from django_dcron.definition import EXHAUSTED, stands_for, timetable_of
from django_dcron.domain.counts_in_words import number_of
from django_dcron.domain.lifecycle import FINAL, State, Trigger
from django_dcron.domain.timetable import INSTANT, Timetable
from django_dcron.exceptions import InvalidSchedule
from django_dcron.models import Cursor, Job, Run, Statistics
from django_dcron.models.database import alias_for
from django_dcron.observability.doctor.comparison import Differences, Occurrences, Row, compare, occurrences
from django_dcron.observability.doctor.findings import Code, Findings
from django_dcron.observability.doctor.window import Window, about_job, at, cursor_of, listed
from django_dcron.pruning import oldest_kept, with_pruned_history

NO_LIMIT = 10**9


@dataclass
class Totals:
    """What was accounted for."""

    jobs: int = 0
    occurrences: int = 0
    runs: int = 0
    since_change: int = 0
    """Jobs accounted for only from their latest change on."""
    pruned: int = 0
    """Jobs whose history begins within the window, because older rows were pruned."""
    truncated: int = 0
    """Jobs of which only the latest occurrences were looked at."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A job, its timetable and the occurrences it is held to."""

    job: Job
    timetable: Timetable
    expected: Occurrences


@dataclass(frozen=True, slots=True)
class Gap:
    """Occurrences of a job that no row within the window accounts for."""

    job: Job
    missing: tuple[datetime, ...]


def examine(jobs: list[Job], window: Window, findings: Findings, totals: Totals) -> None:
    """Account for a batch of jobs, in a number of queries that does not depend on theirs."""
    entries = list(_entries(jobs, window, totals))
    rows = _rows(entries, window)
    gaps = []
    for entry in entries:
        mine = rows[entry.job.pk]
        differences = compare(entry.expected, mine, entry.timetable)
        totals.jobs += 1
        totals.occurrences += len(entry.expected.instants)
        totals.runs += sum(row.trigger == Trigger.SCHEDULE for row in mine)
        _report(entry.job, differences, findings)
        if differences.missing:
            gaps.append(Gap(entry.job, differences.missing))
    for gap in _unexplained(gaps, window, totals) if gaps else ():
        _report_gap(gap, findings)
    _check_statistics([entry.job for entry in entries], rows, findings)


def _entries(jobs: Iterable[Job], window: Window, totals: Totals) -> Iterable[Entry]:
    """Jobs that share a timetable share the answer."""
    answers: dict[tuple[Timetable, datetime | None, datetime, datetime], Occurrences] = {}
    for job in jobs:
        between = _owed(job, window)
        if between is None:
            continue
        after, until, phase = between
        totals.since_change += after > window.since
        timetable = timetable_of(job)
        question = (timetable, phase if timetable.schedule.interval else None, after, until)
        if question not in answers:
            limit = NO_LIMIT if window.runs_per_job is None else window.runs_per_job
            answers[question] = occurrences(timetable, phase, after, until, limit)
        totals.truncated += answers[question].truncated
        yield Entry(job, timetable, answers[question])


def _owed(job: Job, window: Window) -> tuple[datetime, datetime, datetime] | None:
    """After when and until when the job owes rows, and one of its occurrences; None: nothing can be said."""
    cursor = cursor_of(job)
    if cursor is None or cursor.problem or cursor.previous_at is None or not stands_for(cursor, job):
        return None
    if not job.enabled and not (job.pause_reason == EXHAUSTED and cursor.next_at is None):
        return None
    try:
        timetable_of(job)
    except InvalidSchedule:
        return None
    until = min(window.until, cursor.previous_at)
    if cursor.next_at is not None:
        until = min(until, cursor.next_at - INSTANT)  # runs claimed ahead were withdrawn by a change
    after = accountable_since(cursor, window)
    return (after, until, cursor.next_at or cursor.previous_at) if after < until else None


def accountable_since(cursor: Cursor, window: Window) -> datetime:
    """From when on, within the window, the occurrences are those of the definition that the cursor stands for."""
    return window.since if window.steady else max(window.since, cursor.placed_at)


def _rows(entries: Iterable[Entry], window: Window) -> defaultdict[int, list[Row]]:
    """The jobs' rows. Jobs whose windows differ in length by more than a factor of two are not read together: a job of every
    second, of which only the last minutes are looked at, must not be read for a whole day because its neighbour is."""
    groups: defaultdict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[int((window.until - entry.expected.after).total_seconds()).bit_length()].append(entry)
    rows: defaultdict[int, list[Row]] = defaultdict(list)
    for group in groups.values():
        expected = {entry.job.pk: entry.expected for entry in group}
        read = Run.objects.using(alias_for(Run)).filter(
            job__in=expected,
            trigger__in=(Trigger.SCHEDULE, Trigger.BACKFILL),
            scheduled_at__gt=min(each.after for each in expected.values()),
            scheduled_at__lte=max(each.until for each in expected.values()),
        )
        for row in map(Row._make, read.values_list(*Row._fields).iterator(chunk_size=5000)):
            if expected[row.job_id].after < row.scheduled_at <= expected[row.job_id].until:
                rows[row.job_id].append(row)
    return rows


def _unexplained(gaps: list[Gap], window: Window, totals: Totals) -> Iterable[Gap]:
    """The gaps that neither a row after the window nor pruning explains."""
    facts = _surroundings([gap.job.pk for gap in gaps], window)
    leading = [gap.job.pk for gap in gaps if not (facts[gap.job.pk][0] or window.now) < gap.missing[0]]
    pruned = set() if window.steady else with_pruned_history(leading)
    for gap in gaps:
        oldest, missed_from = facts[gap.job.pk]
        missing = [instant for instant in gap.missing if missed_from is None or instant < missed_from]
        if gap.job.pk in pruned:
            totals.pruned += 1
            missing = [instant for instant in missing if oldest is not None and instant > oldest]
        if missing:
            yield Gap(gap.job, tuple(missing))


def _surroundings(job_ids: list[int], window: Window) -> dict[int, tuple[datetime | None, datetime | None]]:
    """For each job its oldest finished row that is not a failure (nor backfilled: that may be older than what is kept), and from when on the first row after the window
    stands for missed occurrences."""
    runs = Run.objects.filter(job=OuterRef("pk")).order_by("scheduled_at")
    later = runs.filter(trigger=Trigger.SCHEDULE, scheduled_at__gt=window.until)
    jobs = Job.objects.using(alias_for(Job)).filter(pk__in=job_ids).order_by()
    found = jobs.values_list(
        "pk", Subquery(oldest_kept().values("scheduled_at")[:1]), Subquery(later.values("missed_from")[:1])
    )
    nothing: tuple[datetime | None, datetime | None] = (None, None)  # of a job that was deleted meanwhile
    return dict.fromkeys(job_ids, nothing) | {pk: (oldest, later) for pk, oldest, later in found}


def _report(job: Job, differences: Differences, findings: Findings) -> None:
    subject = about_job(job)
    if doubled := differences.doubled:
        findings.add(
            Code.OCCURRENCE_DOUBLED,
            subject,
            f"{number_of(len(doubled), 'of its occurrences is', 'of its occurrences are')} accounted for twice, by a run for itself and by a later one that "
            f"counts it as missed: {listed(doubled)}. Nothing ran twice for it; report it as a bug, with the nodes' logs.",
        )
    if off := differences.off_schedule:
        findings.add(
            Code.RUN_OFF_SCHEDULE,
            subject,
            f"{number_of(len(off), 'of its scheduled runs is', 'of its scheduled runs are')} at no occurrence of its schedule: {listed(off)}. Unless "
            "its time zone's rules have changed since (a new tz database), or rows were written by hand, report it as a bug.",
        )
    for row in differences.miscounted:
        findings.add(
            Code.MISSED_MISCOUNTED,
            subject,
            f"Its run of {at(row.scheduled_at)} says it stands for {number_of(row.missed_before, 'missed occurrence')} from "
            f"{at(row.missed_from)} on, but the schedule has another number of them. Report it as a bug.",
        )


def _report_gap(gap: Gap, findings: Findings) -> None:
    number = len(gap.missing)
    findings.add(
        Code.OCCURRENCE_MISSING,
        about_job(gap.job),
        f"{number_of(number, 'of its occurrences was', 'of its occurrences were')} lost, no run accounts for "
        f"{'it' if number == 1 else 'them'}: {listed(gap.missing)}. Run what matters by hand, and report it as a bug with the "
        "nodes' logs of that time; unless rows were deleted by hand.",
    )


def _check_statistics(jobs: list[Job], rows: dict[int, list[Row]], findings: Findings) -> None:
    """A run is counted in the transaction that ends it, so never are there more ended rows than were counted."""
    ended: dict[int, Counter[State]] = {}
    for job in jobs:
        ended[job.pk] = Counter(State(row.state) for row in rows[job.pk] if row.state in FINAL)
        ended[job.pk][State.MISSED] += sum(row.missed_before for row in rows[job.pk])
    statistics = Statistics.objects.using(alias_for(Statistics)).in_bulk([job.pk for job in jobs])
    for job in jobs:
        counted = statistics.get(job.pk, Statistics())
        for state, number in ended[job.pk].items():
            if number > getattr(counted, state.value):
                findings.add(
                    Code.STATISTICS_BEHIND,
                    about_job(job),
                    f"{number_of(number, 'of its runs in the window is', 'of its runs in the window are')} {state.value}, its statistics count "
                    f"{getattr(counted, state.value)}. Rows were written past django-dcron, or its counting has a bug: report it.",
                )
