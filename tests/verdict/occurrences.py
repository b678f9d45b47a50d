"""Rules about occurrences and their rows: losses, duplicates, rows off the schedule, counts.

An occurrence is accounted for by its own row, or by a later row that counts it as missed. It is
lost if no row accounts for it, and duplicated if two do.

If retention may have deleted rows, the oldest rows of a job may be absent: at most as many as its
statistics count beyond its rows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from tests.verdict.finding import TOLERANCE, Finding
from tests.verdict.history import FINAL, History, Job, Run
from tests.verdict.timetable import SECOND, NotJudged, Timetable

AHEAD = timedelta(minutes=5)
"""The time after the window in which each occurrence before the cursor needs a row.

Nodes claim occurrences only seconds ahead.
"""
COUNTED = 999
"""From this number on, ``missed_before`` is a lower bound."""


@dataclass(frozen=True)
class Expectation:
    """The occurrences of a job in the window."""

    job: Job
    timetable: Timetable
    instants: tuple[datetime, ...]


def timetable_of(history: History, job: Job) -> Timetable:
    """Return the job's timetable. Raises ``NotJudged``."""
    rows = [run.scheduled_at for run in history.runs_by_job.get(job.id, ()) if is_planned(run)]
    return Timetable(
        job.schedule,
        job.timezone,
        starts_at=job.starts_at,
        ends_at=job.ends_at,
        phase=job.next_at or job.previous_at,
        known=rows,
        calendar=job.calendar,
        calendar_policy=job.calendar_policy,
    )


def expect(history: History, job: Job) -> Expectation:
    """Return the occurrences that the job must have. Raises ``NotJudged``."""
    timetable = timetable_of(history, job)
    after = max(history.after, job.since)
    instants = [at for at in timetable.between(after, history.until) if at > after]
    if not job.enabled and not _is_over(job, history, instants):
        raise NotJudged("a pause")
    if job.problem:
        raise NotJudged(f"a job that isn't scheduled: {job.problem}")
    return Expectation(job, timetable, tuple(instants))


def _is_over(job: Job, history: History, instants: list[datetime]) -> bool:
    """Return whether a job can have no later occurrence: a node then disables it."""
    if job.next_at is not None:
        return False
    if job.ends_at is not None and job.ends_at <= history.until:
        return True
    return "@at " in job.schedule.lower() and bool(instants)


def existing_jobs(history: History) -> list[Job]:
    return [job for job in history.jobs if job.deleted_at is None]


def is_planned(run: Run) -> bool:
    """Return whether the run stands for an occurrence of the schedule."""
    return run.trigger in ("schedule", "backfill")


def not_judged(history: History) -> list[Finding]:
    """Report each part that can't be judged as a finding, so that the history doesn't pass."""
    found = []
    for job in existing_jobs(history):
        try:
            expect(history, job)
        except NotJudged as error:
            found.append(Finding("not_judged", job.name, str(error)))
    known = {job.id for job in history.jobs}
    found += [
        Finding("not_judged", run.id, "a run without a job")
        for run in history.runs
        if run.job not in known
    ]
    return found


@lru_cache(maxsize=2)
def expectations(history: History) -> tuple[Expectation, ...]:
    """Return the occurrences that each job must have, for the jobs that can be judged."""
    found = []
    for job in existing_jobs(history):
        try:
            found.append(expect(history, job))
        except NotJudged:
            continue  # a finding of ``not_judged``
    return tuple(found)


def lost(history: History) -> list[Finding]:
    """Each expected occurrence has a row, or a later row counts it as missed."""
    found = []
    for each in expectations(history):
        runs = history.runs_by_job.get(each.job.id, [])
        rows = {run.scheduled_at for run in runs if is_planned(run)}
        missed = with_missed(runs)
        missing = [at for at in each.instants if at not in rows and not covered(at, missed)]
        excused = pruned(history, each.job)
        oldest = min(rows, default=None)
        for at in missing:
            if excused and (oldest is None or at < oldest):
                excused -= 1
                continue
            found.append(Finding("lost", each.job.name, f"no row accounts for {at}"))
    return found


def with_missed(runs: list[Run]) -> list[Run]:
    """Return the runs that count occurrences as missed: few, so that ``covered`` is fast."""
    return [run for run in runs if run.missed_from]


def covered(at: datetime, runs: list[Run]) -> int:
    """Return how many runs count the occurrence at ``at`` as missed."""
    return sum(run.missed_from <= at < run.scheduled_at for run in runs if run.missed_from)


def pruned(history: History, job: Job) -> int:
    """Return how many rows of the job retention may have deleted."""
    ended = [run for run in history.runs_by_job.get(job.id, ()) if run.state in FINAL]
    by_number = job.keep_runs is not None and len(ended) >= job.keep_runs
    by_age = job.keep_for is not None and history.until - history.after > job.keep_for
    if not (by_number or by_age):
        return 0
    counted = next((each for each in history.counters if each.job == job.id), None)
    if counted is None:
        return 0
    total = counted.succeeded + counted.failed + counted.skipped + counted.cancelled
    total += counted.missed
    return max(total - sum(1 + run.missed_before for run in ended), 0)


def duplicated(history: History) -> list[Finding]:
    """No two rows have the same occurrence, and no occurrence with a row is counted as missed."""
    rows = Counter((run.job, run.scheduled_at) for run in history.runs)
    found = [
        Finding("duplicated", name_of(history, job), f"{number} rows for {at}")
        for (job, at), number in rows.items()
        if number > 1
    ]
    ids = Counter(run.id for run in history.runs)
    found += [Finding("duplicated", run, "two rows of one run") for run, n in ids.items() if n > 1]
    for each in expectations(history):
        runs = history.runs_by_job.get(each.job.id, [])
        claimed = {run.scheduled_at for run in runs if run.trigger == "schedule"}
        missed = with_missed(runs)
        for at in sorted(claimed.union(each.instants)):
            times = (at in claimed) + covered(at, missed)
            if times > 1:
                found.append(Finding("duplicated", each.job.name, f"{times} rows account for {at}"))
    return found


def off_schedule(history: History) -> list[Finding]:
    """Each scheduled or backfilled run is at an occurrence, and so is the cursor."""
    found = []
    for each in expectations(history):
        job = each.job
        for run in history.runs_by_job.get(job.id, ()):
            at = run.scheduled_at
            if run.finished_at is not None and run.finished_at <= job.since:
                continue  # cancelled before its time, under an earlier definition
            if run.trigger == "backfill" or (run.trigger == "schedule" and at > job.since):
                if not each.timetable.occurs_at(at):
                    found.append(Finding("off_schedule", job.name, f"{run.trigger} run at {at}"))
            elif run.trigger != "schedule" and not at.microsecond:
                message = f"{run.trigger} run at the whole second {at}"
                found.append(Finding("off_schedule", job.name, message))
        if job.next_at is not None and not each.timetable.occurs_at(job.next_at):
            found.append(Finding("off_schedule", job.name, f"the cursor is at {job.next_at}"))
    return found


def behind(history: History) -> list[Finding]:
    """The cursor has passed the window, with a row for each occurrence before it."""
    found = []
    for each in expectations(history):
        runs = history.runs_by_job.get(each.job.id, [])
        found += [Finding("behind", each.job.name, text) for text in _behind(history, each, runs)]
    return found


def _behind(history: History, each: Expectation, runs: list[Run]) -> Iterator[str]:
    job = each.job
    if job.next_at is None:
        ends = job.ends_at is not None or re.search("@(at|never)", job.schedule.lower())
        if job.enabled and not ends:
            yield "the cursor has stopped"
        return
    if job.next_at <= history.until:
        yield f"the cursor is at {job.next_at}"
    rows = {run.scheduled_at for run in runs}
    begin = max(job.since, history.until)
    for at in each.timetable.between(begin, min(job.next_at - SECOND, begin + AHEAD)):
        if at > begin and at not in rows and not covered(at, runs):
            yield f"no row for {at}, before the cursor at {job.next_at}"
    later = [run for run in runs if run.trigger == "schedule" and run.scheduled_at >= job.next_at]
    for run in later:
        yield f"a run at {run.scheduled_at}, not before the cursor at {job.next_at}"


def unfinished(history: History) -> list[Finding]:
    """Each run of the window has ended, with a time and without a slot."""
    found = []
    for run in history.runs:
        about = run_name(history, run)
        if run.state not in FINAL:
            if run.scheduled_at <= history.until:
                found.append(Finding("unfinished", about, run.state))
            continue
        if run.finished_at is None:
            found.append(Finding("unfinished", about, f"{run.state} without a time"))
        if run.slot is not None:
            found.append(Finding("unfinished", about, f"{run.state} in slot {run.slot}"))
    return found


def misfires(history: History) -> list[Finding]:
    """Missed occurrences are counted right, and missed only as the job's policy says."""
    found = []
    for each in expectations(history):
        runs = history.runs_by_job.get(each.job.id, [])
        for run in runs:
            wrong = [*_miscounted(run, each.timetable), *_misjudged(run, each, runs)]
            found += [Finding("misfires", run_name(history, run), message) for message in wrong]
    return found


def _miscounted(run: Run, timetable: Timetable) -> Iterator[str]:
    if run.missed_from is None:
        if run.missed_before:
            yield f"counts {run.missed_before} missed occurrences without a start time"
        return
    number = len(timetable.between(run.missed_from, run.scheduled_at - SECOND))
    is_right = run.missed_before == number or COUNTED <= run.missed_before <= number
    if not is_right or not timetable.occurs_at(run.missed_from):
        yield f"counts {run.missed_before} missed occurrences since {run.missed_from}, not {number}"


def _misjudged(run: Run, each: Expectation, runs: list[Run]) -> Iterator[str]:
    """Yield why the run is missed, or covers others, against the policy of its job."""
    job = each.job
    missed = run.state == "missed"
    if run.missed_before and run.scheduled_at <= run.claimed_at:
        # A row that was claimed ahead of time may take over the count of another one.
        late = run.claimed_at - run.scheduled_at
        if late <= job.misfire_grace - TOLERANCE:
            yield f"covers missed occurrences {late} after its time"
    if missed and run.finished_at is not None:
        late = run.finished_at - run.scheduled_at
        limit = job.misfire_grace
        if job.start_deadline is not None:
            limit = min(limit, job.start_deadline)
        if late <= limit - TOLERANCE:
            yield f"missed {late} after its time, within the grace of {limit}"
    if job.misfire_policy == "run_all" and job.start_deadline is None:
        in_all = sum(1 + other.missed_before for other in runs if other.trigger == "schedule")
        if (missed or run.missed_before) and in_all <= job.catchup_limit:
            yield f"missed under run_all, although there are only {in_all} occurrences"


def name_of(history: History, job: int) -> str:
    known = history.job_by_id.get(job)
    return known.name if known else f"job {job}"


def run_name(history: History, run: Run) -> str:
    return f"{name_of(history, run.job)} at {run.scheduled_at:%Y-%m-%d %H:%M:%S} ({run.id})"
