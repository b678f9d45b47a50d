"""Save, change and delete the definitions of jobs and calendars, and move the cursors.

Invariants:

- A job's row and its cursor change in one transaction. The same transaction deletes runs that were
  claimed ahead from the old definition.
- Due occurrences survive a change: claimed runs stay, and unclaimed occurrences are claimed first.
  So a change made while no node was running loses no occurrence.
- Rows are locked in the order cursor, job, runs. The claim uses the same order, so the two never
  deadlock.
- A save names the version of the job that it read. If the row has another version, the save raises
  ``Conflict`` and writes nothing.
- This module never writes columns that belong to the scheduler or the workers.
- ``follow_changes`` compares rows to catch up with definitions that were written without this
  module.
- A change doesn't shorten a pause. If a node has ended a pause early, because it looks ahead, the
  new definition applies from the end of the pause, too.
- No save or deletion leaves a job enabled that can never run again. Such a save fails. The deletion
  of the last job that such a job follows disables it.
- A quarantined job keeps its position. When its definition is valid again, the claim continues from
  there by the misfire policy.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime
from functools import partial

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import F, Q
from django.utils.translation import gettext

from django_dcron.conf import settings
from django_dcron.db.contention import despite_contention, keeping_the_others_going
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import Conflict, InvalidSchedule, NotPossible
from django_dcron.jobs import chains
from django_dcron.models import Calendar, Cursor, Job, Run, Statistics
from django_dcron.models.cursor import COPIED_FIELDS, same_definition
from django_dcron.models.job import JobQuerySet
from django_dcron.policies.misfire import Misfire, MisfirePolicy, PlannedRun
from django_dcron.runs import transitions
from django_dcron.runs.creation import insert, row_for
from django_dcron.schedules.timetable import MICROSECOND, Timetable
from django_dcron.utils.messages import gettext_noop as _

logger = logging.getLogger("django_dcron.scheduler")

EXHAUSTED = _("its schedule has no further occurrence")
FOLLOWED_AT_ONCE = 500
DELETED_AT_ONCE = 1_000
CLAIMED_BEFORE_A_CHANGE = 1000
"""About how many runs a change of definition creates for earlier due occurrences. One more run
stands for the rest."""


def save(job: Job, *, expected_version: int | None = None) -> Job:
    """Validate and save ``job``, and move its cursor if its occurrences change.

    ``expected_version`` is the version that the change is based on, by default the instance's. A
    paused job keeps the end of its pause unless ``paused_until`` changes. Raises
    ``ValidationError`` by field, or ``Conflict`` if the row has another version; then nothing is
    saved.
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
            if rechained := chains.changes(job, using):
                chains.lock(job, using)
            if not is_new:
                before = lock_version(job.pk, expected, using)
                job.version = expected + 1
            job.save(using=using)
            if rechained:
                chains.place_links(job, before, using)
            _require_occurrence(job, place_cursor(job, database_now(using), using, before))
    except BaseException as error:
        # Nothing was written, so the instance must keep its old state: it may be saved again.
        job.version = read
        if is_new:
            job.pk, job._state.adding = None, True
        if isinstance(error, IntegrityError):
            job.full_clean()  # another process may have taken the name
        raise
    return job


def _require_occurrence(job: Job, cursor: Cursor) -> None:
    """Require a future occurrence, like the validation.

    The job's last occurrence may have passed since the validation, for example while the save
    waited for a lock, or it may lie before the end of the job's pause.
    """
    if job.enabled and cursor.next_at is None and not cursor.problem and not runs_otherwise(job):
        text = gettext("%(schedule)s has no occurrence after %(start)s.") % {
            "schedule": job.schedule,
            "start": cursor.placed_at.isoformat(timespec="seconds"),
        }
        raise ValidationError({"schedule": ValidationError(text, code="exhausted")})


def save_calendar(calendar: Calendar, *, expected_version: int | None = None) -> Calendar:
    """Validate and save ``calendar``, and move the cursors of its jobs if its dates change.

    The cursors move after the commit of the surrounding transaction. From then on, nodes don't use
    the old dates. ``expected_version`` and the exceptions are those of ``save``.
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
            # If there are many jobs, or this process dies here, nodes move the other cursors.
            transaction.on_commit(
                partial(_follow_calendar, calendar.pk, using), using=using, robust=True
            )
    except BaseException as error:
        calendar.version, calendar._state.adding = read, is_new
        if isinstance(error, IntegrityError):
            calendar.full_clean()  # another process may have taken the name
        raise
    return calendar


def delete_calendar(calendar: Calendar, *, expected_version: int | None = None) -> None:
    """Delete ``calendar``.

    ``expected_version`` is that of ``delete``. Raises ``Conflict``, or ``NotPossible`` if a job
    names the calendar.
    """
    using = alias_for(Calendar)
    despite_contention(lambda: _delete_calendar(calendar, expected_version, using), using)


def _delete_calendar(calendar: Calendar, expected_version: int | None, using: str) -> None:
    with transaction.atomic(using=using):
        _lock_calendar(calendar.pk, expected_version, using)
        # A save of a job that is about to name the calendar waits for this lock and then fails.
        named_by = Job.objects.using(using).filter(calendar=calendar.pk).first()
        if named_by is not None:
            raise NotPossible(
                _("%(calendar)s can't be deleted, because %(job)s uses it."),
                calendar=str(calendar),
                job=str(named_by),
                code="in_use",
            )
        Calendar.objects.using(using).filter(pk=calendar.pk).delete()


def _lock_calendar(name: str, expected_version: int | None, using: str) -> None:
    row = Calendar.objects.using(using).select_for_update().filter(pk=name).first()
    if row is None:
        raise Conflict(_("The calendar has been deleted. Nothing was saved."), code="deleted")
    if expected_version is not None and row.version != expected_version:
        raise Conflict(
            _("%(job)s was changed by someone else. Nothing was saved. Reload it and try again."),
            job=row.name,
            code="changed",
        )


def _follow_calendar(name: str, using: str) -> None:
    follow_changes(database_now(using), Job.objects.using(using).filter(calendar=name))


def rest(exhausted: Iterable[int], using: str) -> None:
    """Disable jobs without further occurrences, unless they run for other reasons.

    The caller has locked their cursors.
    """
    jobs = Job.objects.using(using).filter(pk__in=exhausted)
    resting = [job.pk for job in jobs if not runs_otherwise(job)]
    Job.objects.using(using).filter(pk__in=resting, enabled=True).update(
        enabled=False, pause_reason=EXHAUSTED, paused_until=None, version=F("version") + 1
    )
    Cursor.objects.using(using).filter(pk__in=resting).update(enabled=False)


def runs_otherwise(job: Job) -> bool:
    """Return whether the job needs no occurrences: it follows other jobs or is ``@never``."""
    try:
        return bool(job.after) or job.parsed_schedule.is_never
    except InvalidSchedule:
        return False


def delete(job: Job, *, expected_version: int | None = None) -> None:
    """Delete ``job`` with its runs, in batches.

    ``expected_version`` is the version of the job as it was read; by default, any version is
    deleted. Raises ``Conflict``.
    """
    using = alias_for(Job)
    despite_contention(lambda: _delete(job, expected_version, using), using)


def _delete(job: Job, expected_version: int | None, using: str) -> None:
    runs = Run.objects.using(using).filter(job=job.pk)
    locked: list[int] = []
    with transaction.atomic(using=using):
        if chains.is_linked(job, using):
            locked = [job.pk, *chains.followers(job, using)]
            _lock_cursors(locked, using)
            chains.lock(job, using)
        # First the cursor and the job, so that nobody claims or triggers a further run.
        row = lock_version(job.pk, expected_version, using)
        if chains.is_linked(row, using):
            # Nodes disable a follower that was linked meanwhile: its cursor isn't locked here.
            followers = [key for key in chains.followers(row, using) if key in locked]
            chains.forget(row, using)
            _rest_silent(followers, using)
        Cursor.objects.using(using).filter(pk=job.pk).delete()
        while run_ids := list(
            runs.order_by("scheduled_at").values_list("pk", flat=True)[:DELETED_AT_ONCE]
        ):
            runs.filter(pk__in=run_ids).delete()
        job.delete(using=using)


def _lock_cursors(job_ids: list[int], using: str) -> None:
    cursors = Cursor.objects.using(using).filter(pk__in=job_ids).order_by("pk")
    list(cursors.select_for_update().values_list("pk", flat=True))


def _rest_silent(job_ids: list[int], using: str) -> None:
    """Disable the jobs that have nothing left to run for.

    If a cursor is outdated, the node that updates it decides.
    """
    silent = Cursor.objects.using(using).filter(
        pk__in=job_ids, enabled=True, next_at=None, problem=""
    )
    rest(list(silent.current().values_list("pk", flat=True)), using)


def follow_changes(now: datetime, jobs: JobQuerySet) -> int:
    """Move the cursors of the ``jobs`` that are new or were changed without ``save``.

    Returns their number.
    """
    overtaken = jobs.filter(Q(cursor=None) | ~same_definition("cursor__", "")).values_list(
        "pk", flat=True
    )
    return _follow_each(list(overtaken[:FOLLOWED_AT_ONCE]), now, jobs.db)


def retry_quarantined(now: datetime, jobs: JobQuerySet) -> int:
    """Try quarantined ``jobs`` again: this node may accept them, or the cause may be corrected.

    If the next occurrence is known, the claim decides from there. Returns the number of jobs tried.
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
        if job.enabled and job.paused_until:  # otherwise it would end a later pause
            Job.objects.using(using).filter(pk=job_id).update(paused_until=None)
        # ``now`` is as old as the caller's last pause. What has become due since must be kept.
        cursor = place_cursor(job, max(now, database_now(using)), using)
        if job.enabled and cursor.next_at is None and not cursor.problem:
            rest([job_id], using)
    return True


def timetable_of(definition: Job | Cursor) -> Timetable:
    """Return the timetable of the definition. Raises ``InvalidSchedule``."""
    return Timetable(definition.parsed_schedule, definition.starts_at, definition.ends_at)


def lock(job_id: int, using: str, *, nowait: bool = False) -> Job | None:
    """Lock the cursor, then the job, until the transaction ends. None if there is no job."""
    Cursor.objects.using(using).select_for_update(nowait=nowait).filter(pk=job_id).first()
    return Job.objects.using(using).select_for_update(nowait=nowait).filter(pk=job_id).first()


def lock_version(job_id: int, expected_version: int | None, using: str) -> Job:
    """Lock the job and check its version. None accepts any version.

    Raises ``Conflict`` if the job was deleted or has another version.
    """
    row = lock(job_id, using)
    if row is None:
        raise Conflict(_("The job has been deleted. Nothing was saved."), code="deleted")
    if expected_version is not None and row.version != expected_version:
        raise Conflict(
            _("%(job)s was changed by someone else. Nothing was saved. Reload it and try again."),
            job=str(row),
            code="changed",
        )
    return row


def place_cursor(
    job: Job, now: datetime, using: str, before: Job | None = None, since: datetime | None = None
) -> Cursor:
    """Compute the job's cursor from its definition, unless it is up to date and not quarantined.

    ``before``: The previous definition, if known. Its policies decide about what was due, unless
    the job was quarantined. If its pause is over and no node has noticed, the occurrences since the
    end of the pause are due.
    ``since``: Instant after which occurrences count instead of ``now``, unless the cursor's
    definition is newer.
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
            Statistics.objects.using(using).filter(pk=job.pk).update(consecutive_failures=0)
    _compute(cursor, job, max(since, cursor.placed_at) if since else now)
    cursor.save(using=using)
    return cursor


def _resumes_at(cursor: Cursor, job: Job, now: datetime) -> datetime | None:
    """Return the end of the pause if a node has ended it early and that instant is still ahead.

    Occurrences count from then on.
    """
    resumes = cursor.enabled and job.enabled and now < cursor.placed_at <= now + settings.LOOK_AHEAD
    return cursor.placed_at if resumes else None


def _end_of_pause(job: Job, now: datetime) -> datetime | None:
    """Return when the job's pause was over, if no node has noticed that yet."""
    over = not job.enabled and job.paused_until is not None and job.paused_until <= now
    return job.paused_until if over else None


def _go_on_from(instant: datetime, cursor: Cursor) -> None:
    """Make the occurrences since ``instant`` due.

    If the definition is invalid, assume that an occurrence has been due since then.
    """
    after = max(instant - MICROSECOND, cursor.placed_at)
    try:
        cursor.next_at = timetable_of(cursor).first_after(after, cursor.previous_at)
    except InvalidSchedule:
        cursor.next_at = after + MICROSECOND


def _claim_due(cursor: Cursor, job: Job, now: datetime) -> list[Run]:
    """Claim what is due by the definition that ``cursor`` was computed from.

    The leader of the job's shard dispatches these runs.
    """
    rows: list[Run] = []

    def account_for(planned: PlannedRun, reason: str = "") -> None:
        rows.append(
            row_for(
                planned,
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
            if len(rows) >= CLAIMED_BEFORE_A_CHANGE:  # one planned run accounts for the rest
                late_before, misfire = (
                    now + MICROSECOND,
                    Misfire(MisfirePolicy.SKIP, job.misfire_grace, 1),
                )
                reason = "the job was changed before all due occurrences could be claimed"
            considered = timetable.consider(
                cursor.next_at, late_before=late_before, horizon=now, misfire=misfire
            )
            for planned in considered.planned_runs:
                account_for(planned, reason)
            cursor.next_at, cursor.previous_at = considered.next_at, considered.previous_at
    # The invalid definition is being replaced, and that must not fail.
    except Exception as error:
        extra = {"event": "due_not_claimed", "job": str(job)}
        logger.exception("due occurrences not recorded: job=%s", job, extra=extra)
        if cursor.next_at is not None and cursor.next_at <= now:
            reason = (
                f"the occurrences that were due before the job was changed are unknown: {error}"
            )
            account_for(PlannedRun(cursor.next_at, missed=True), reason)
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
        # An unknown error of this job must not stop the other jobs.
        except Exception as error:
            logger.exception(
                "job quarantined: job=%s", job, extra={"event": "quarantined", "job": str(job)}
            )
            cursor.problem = f"{type(error).__name__}: {error}"
