"""Every change of a job's definition, and of its cursor with it.

Invariants:

- A job's row and its cursor change in one transaction; the runs claimed ahead from the old definition are withdrawn in
  the same one. What is already due stays, and what is due but not claimed yet is claimed then: a change made while no
  node was looking loses no occurrence.
- Rows are locked in the order cursor, job, runs: the order of the claim, so that the two never deadlock.
- A save says which version of the job it read; if somebody else saved meanwhile, it raises ``Conflict`` and writes
  nothing. No column of the scheduler or of the workers is ever written from here.
- A definition written past this module is caught up with by ``follow_changes``, which compares rows.
- A change shortens no pause: where a node has ended one ahead of its end, the new definition counts from that end on as well.
- A job in quarantine keeps its place: when it can be read again, the claim goes on from there by the misfire policy.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime
from functools import partial

from django.db import IntegrityError, transaction
from django.db.models import F, Q

from django_dcron import chaining, transitions
from django_dcron.conf import settings
from django_dcron.domain.misfire import Misfire, MisfirePolicy, Span
from django_dcron.domain.timetable import INSTANT, Timetable
from django_dcron.exceptions import Conflict, InvalidSchedule, NotPossible
from django_dcron.models import Calendar, Cursor, Job, Run, Statistics
from django_dcron.models.cursor import COPIED_FIELDS, same_definition
from django_dcron.models.database import (
    alias_for,
    database_now,
    despite_contention,
    keeping_the_others_going,
)
from django_dcron.models.job import JobQuerySet
from django_dcron.occurrences import insert, row_for
from django_dcron.phrases import gettext_noop as _

logger = logging.getLogger("django_dcron.scheduler")

EXHAUSTED = _("its schedule has no further occurrence")
FOLLOWED_AT_ONCE = 500
DELETED_AT_ONCE = 1_000
CLAIMED_BEFORE_A_CHANGE = 1000
"""About how many rows a change of definition makes of what was due before it; one more stands for the rest."""


def save(job: Job, *, expected_version: int | None = None) -> Job:
    """Validate and write ``job``, and move its cursor if its occurrences change.

    ``expected_version``: the version the change was made on; the instance's own by default. Raises ``ValidationError``
    by field, or ``Conflict`` if the row has another version by now; then nothing is written. A job that stays paused keeps
    the end of its pause unless ``paused_until`` says otherwise.
    """
    using = alias_for(Job)
    return despite_contention(lambda: _save(job, expected_version, using), using)


def _save(job: Job, expected_version: int | None, using: str) -> Job:
    if job.enabled:
        job.paused_until = None
    job.full_clean()
    is_new, read = job.pk is None, job.version
    expected = read if expected_version is None else expected_version
    try:
        with transaction.atomic(using=using):
            before = None
            if rechained := chaining.changes(job, using):
                chaining.lock(job, using)
            if not is_new:
                before = lock_version(job.pk, expected, using)
                job.version = expected + 1
            job.save(using=using)
            if rechained:
                chaining.place(job, before, using)
            place(job, database_now(using), using, before)
    except BaseException as error:
        # Nothing was written, and the instance must not say otherwise: it may be saved again.
        job.version = read
        if is_new:
            job.pk, job._state.adding = None, True
        if isinstance(error, IntegrityError):
            job.full_clean()  # somebody else took the name meanwhile
        raise
    return job


def save_calendar(calendar: Calendar, *, expected_version: int | None = None) -> Calendar:
    """Validate and write ``calendar``, and move the cursors of its jobs if its dates change, after the commit of the
    surrounding transaction: from then on nothing is claimed by the old dates. ``expected_version`` and what is raised: as for
    ``save``.
    """
    using = alias_for(Calendar)
    calendar.full_clean()
    is_new, read = calendar._state.adding, calendar.version
    try:
        with transaction.atomic(using=using):
            if not is_new:
                expected = read if expected_version is None else expected_version
                _lock_calendar(calendar.pk, expected, using)
                calendar.version = expected + 1
            calendar.save(using=using, force_insert=is_new)
            # What is left of many, or of a process that dies here, is followed by the nodes.
            transaction.on_commit(partial(_follow_calendar, calendar.pk, using), using=using, robust=True)
    except BaseException as error:
        calendar.version, calendar._state.adding = read, is_new
        if isinstance(error, IntegrityError):
            calendar.full_clean()  # somebody else took the name meanwhile
        raise
    return calendar


def delete_calendar(calendar: Calendar, *, expected_version: int | None = None) -> None:
    """``expected_version``: as for ``delete``. Raises ``Conflict``, or ``NotPossible`` if a job names it."""
    using = alias_for(Calendar)
    despite_contention(lambda: _delete_calendar(calendar, expected_version, using), using)


def _delete_calendar(calendar: Calendar, expected_version: int | None, using: str) -> None:
    with transaction.atomic(using=using):
        _lock_calendar(calendar.pk, expected_version, using)
        # Whoever is about to name it waits for the lock, and is refused then.
        named_by = Job.objects.using(using).filter(calendar=calendar.pk).first()
        if named_by is not None:
            raise NotPossible(
                _("%(calendar)s cannot be deleted: %(job)s names it."),
                calendar=str(calendar),
                job=str(named_by),
            )
        Calendar.objects.using(using).filter(pk=calendar.pk).delete()


def _lock_calendar(name: str, expected_version: int | None, using: str) -> None:
    row = Calendar.objects.using(using).select_for_update().filter(pk=name).first()
    if row is None:
        raise Conflict(_("The calendar was deleted meanwhile; nothing was saved."))
    if expected_version is not None and row.version != expected_version:
        raise Conflict(_("%(job)s was changed meanwhile by somebody else; nothing was saved."), job=row.name)


def _follow_calendar(name: str, using: str) -> None:
    follow_changes(database_now(using), Job.objects.using(using).filter(calendar=name))


def rest(exhausted: Iterable[int], using: str) -> None:
    """Disable jobs with nothing to come. The caller holds their cursors' locks. Those that run otherwise stay as they are."""
    jobs = Job.objects.using(using).filter(pk__in=exhausted)
    resting = [job.pk for job in jobs if not runs_otherwise(job)]
    Job.objects.using(using).filter(pk__in=resting, enabled=True).update(
        enabled=False, pause_reason=EXHAUSTED, paused_until=None, version=F("version") + 1
    )
    Cursor.objects.using(using).filter(pk__in=resting).update(enabled=False)


def runs_otherwise(job: Job) -> bool:
    """Whether it is there for more than its schedule's occurrences: it comes after other jobs, or it was said that it has none."""
    try:
        return bool(job.after) or job.parsed_schedule.is_never
    except InvalidSchedule:
        return False


def delete(job: Job, *, expected_version: int | None = None) -> None:
    """Delete ``job``, and its history with it, which may be a million runs: those in pieces. ``expected_version``: of the job as
    it was read; by default any will do. Raises ``Conflict``."""
    using = alias_for(Job)
    despite_contention(lambda: _delete(job, expected_version, using), using)


def _delete(job: Job, expected_version: int | None, using: str) -> None:
    runs = Run.objects.using(using).filter(job=job.pk)
    with transaction.atomic(using=using):
        if chaining.is_linked(job, using):
            chaining.lock(job, using)
        # First the cursor and the job, so that nobody claims or triggers another run meanwhile.
        row = lock_version(job.pk, expected_version, using)
        if chaining.is_linked(row, using):
            chaining.forget(row, using)
        Cursor.objects.using(using).filter(pk=job.pk).delete()
        while run_ids := list(runs.order_by("scheduled_at").values_list("pk", flat=True)[:DELETED_AT_ONCE]):
            runs.filter(pk__in=run_ids).delete()
        job.delete(using=using)


def follow_changes(now: datetime, jobs: JobQuerySet) -> int:
    """Place the cursors of those of ``jobs`` that are new or were changed past ``save``. Returns how many."""
    overtaken = jobs.filter(Q(cursor=None) | ~same_definition("cursor__", "")).values_list("pk", flat=True)
    return _follow_each(list(overtaken[:FOLLOWED_AT_ONCE]), now, jobs.db)


def retry_quarantined(now: datetime, jobs: JobQuerySet) -> int:
    """Try those of ``jobs`` again that could not be read: maybe another node can, or something was mended since.

    Where the next occurrence is known, the claim decides, from there on. Returns how many.
    """
    quarantined = jobs.filter(enabled=True, cursor__problem__gt="").values_list("pk", flat=True)
    placed = list(quarantined.exclude(cursor__next_at=None)[:FOLLOWED_AT_ONCE])
    unplaced = list(quarantined.filter(cursor__next_at=None)[:FOLLOWED_AT_ONCE])
    tried = Cursor.objects.using(jobs.db).filter(pk__in=placed).update(problem="")
    return tried + _follow_each(unplaced, now, jobs.db)


def _follow_each(job_ids: list[int], now: datetime, using: str) -> int:
    followed = 0
    for job_id in job_ids:
        with keeping_the_others_going(f"the change of job {job_id}", using):
            followed += _follow(job_id, now, using)
    return followed


def _follow(job_id: int, now: datetime, using: str) -> bool:
    with transaction.atomic(using=using):
        job = lock(job_id, using, nowait=True)
        if job is None:
            return False
        if job.enabled and job.paused_until:  # else it would end a pause to come
            Job.objects.using(using).filter(pk=job_id).update(paused_until=None)
        # The caller's time is as old as its last pause: what has fallen due since then must not be withdrawn.
        cursor = place(job, max(now, database_now(using)), using)
        if job.enabled and cursor.next_at is None and not cursor.problem:
            rest([job_id], using)
    return True


def timetable_of(definition: Job | Cursor) -> Timetable:
    """Raises ``InvalidSchedule``."""
    return Timetable(definition.parsed_schedule, definition.starts_at, definition.ends_at)


def lock(job_id: int, using: str, *, nowait: bool = False) -> Job | None:
    """The job, locked until the transaction ends, and its cursor before it; None if there is no such job."""
    Cursor.objects.using(using).select_for_update(nowait=nowait).filter(pk=job_id).first()
    return Job.objects.using(using).select_for_update(nowait=nowait).filter(pk=job_id).first()


def lock_version(job_id: int, expected_version: int | None, using: str) -> Job:
    """Raises ``Conflict`` if the job is gone, or has another version; None: any will do."""
    row = lock(job_id, using)
    if row is None:
        raise Conflict(_("The job was deleted meanwhile; nothing was saved."))
    if expected_version is not None and row.version != expected_version:
        raise Conflict(_("%(job)s was changed meanwhile by somebody else; nothing was saved."), job=str(row))
    return row


def place(
    job: Job, now: datetime, using: str, before: Job | None = None, since: datetime | None = None
) -> Cursor:
    """Make the job's cursor stand for its definition. One that does already is left where it is, unless in quarantine.

    ``before``: the job as it was, if that is known: what was due then is judged by the policy of then, unless the job
    was in quarantine for it; and if its pause was over then, or is now, and no node has looked, what came since is due.
    ``since``: after when its occurrences count, rather than ``now``, unless it was defined later.
    """
    cursor = Cursor.objects.using(using).filter(pk=job.pk).first()
    pause_over = _end_of_pause(before or job, now)
    if cursor is None:
        cursor, since = Cursor(job=job), None
        Statistics.objects.using(using).get_or_create(job=job)
    elif stands_for(cursor, job) and not cursor.problem and not pause_over:
        return cursor
    else:
        judge = job if before is None or cursor.problem else before
        if pause_over:
            _go_on_from(pause_over, cursor)
        since = since or _resumes_at(cursor, job, now)
        insert(_claim_due(cursor, judge, now), using)
        transitions.withdraw(job.pk, now, using)
        if job.enabled and not cursor.enabled:
            Statistics.objects.using(using).filter(pk=job.pk).update(failures_in_a_row=0)
    _compute(cursor, job, max(since, cursor.placed_at) if since else now)
    cursor.save(using=using)
    return cursor


def _resumes_at(cursor: Cursor, job: Job, now: datetime) -> datetime | None:
    """After when occurrences count, if a node has ended a pause ahead of its end and that is still to come."""
    resumes = cursor.enabled and job.enabled and now < cursor.placed_at <= now + settings.LOOK_AHEAD
    return cursor.placed_at if resumes else None


def _end_of_pause(job: Job, now: datetime) -> datetime | None:
    """When its pause was over, if no node has looked since."""
    over = not job.enabled and job.paused_until is not None and job.paused_until <= now
    return job.paused_until if over else None


def _go_on_from(instant: datetime, cursor: Cursor) -> None:
    """Let what came since be due; one that cannot be read has been due since then, for all that is known."""
    after = max(instant - INSTANT, cursor.placed_at)
    try:
        cursor.next_at = timetable_of(cursor).first_after(after, cursor.previous_at)
    except InvalidSchedule:
        cursor.next_at = after + INSTANT


def _claim_due(cursor: Cursor, job: Job, now: datetime) -> list[Run]:
    """Claim what is due by the definition that ``cursor`` still stands for; whoever leads the job's shard takes it up."""
    rows: list[Run] = []

    def account_for(span: Span, reason: str = "") -> None:
        rows.append(
            row_for(
                span,
                job_id=job.pk,
                jitter=job.jitter,
                misfire_grace=job.misfire_grace,
                now=now,
                node=transitions.NOBODY,
                reason=reason,
            )
        )

    try:
        timetable, misfire = timetable_of(cursor), job.misfire
        late_before, reason = now - job.misfire_grace, ""
        while cursor.next_at is not None and cursor.next_at <= now:
            if len(rows) >= CLAIMED_BEFORE_A_CHANGE:  # the rest is one span
                late_before, misfire = now + INSTANT, Misfire(MisfirePolicy.SKIP, job.misfire_grace, 1)
                reason = "the job was changed before all that was due could be claimed"
            considered = timetable.consider(
                cursor.next_at, late_before=late_before, horizon=now, misfire=misfire
            )
            for span in considered.spans:
                account_for(span, reason)
            cursor.next_at, cursor.previous_at = considered.next_at, considered.previous_at
    except Exception as error:  # the definition that could not be read is being replaced: that must not fail
        extra = {"event": "due_not_claimed", "job": str(job)}
        logger.exception("what was due of job %s cannot be claimed", job, extra=extra)
        if cursor.next_at is not None and cursor.next_at <= now:
            reason = f"what was due from here until the job was changed is not known: {error}"
            account_for(Span(cursor.next_at, missed=True), reason)
            cursor.previous_at = cursor.next_at
    return rows


def stands_for(cursor: Cursor, job: Job) -> bool:
    return all(getattr(cursor, field) == getattr(job, field) for field in COPIED_FIELDS)


def _compute(cursor: Cursor, job: Job, now: datetime) -> None:
    for field in COPIED_FIELDS:
        setattr(cursor, field, getattr(job, field))
    cursor.placed_at = now
    cursor.problem = ""
    cursor.next_at = None
    if job.enabled:
        try:
            cursor.next_at = timetable_of(job).first_after(now, cursor.previous_at)
        except InvalidSchedule as error:
            cursor.problem = str(error)
        except Exception as error:  # whatever it is, it is this job's: the others must not wait for it
            logger.exception(
                "job %s cannot be scheduled", job, extra={"event": "quarantined", "job": str(job)}
            )
            cursor.problem = f"{type(error).__name__}: {error}"
