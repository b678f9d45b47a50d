"""Place the cursors of jobs: decide on plain data, then write any number of cursors at once.

Invariants:

- ``decide_placement`` reads nothing from the database. The caller has locked the cursor and the
  job.
- Due occurrences survive a change: claimed runs stay, and unclaimed occurrences are claimed first.
- A change doesn't shorten a pause. If a node has ended a pause early, because it looks ahead, the
  new definition applies from the end of the pause, too.
- A finished job whose timing changes is enabled again if it then has an occurrence.
- A quarantined job keeps its position. When its definition is valid again, the claim continues from
  there by the misfire policy.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from django.core.exceptions import ValidationError
from django.db import connections
from django.utils.translation import gettext

from django_dcron.exceptions import InvalidSchedule
from django_dcron.models import Cursor, Job, Statistics
from django_dcron.models.cursor import COPIED_FIELDS
from django_dcron.policies.misfire import Misfire, MisfirePolicy, PlannedRun
from django_dcron.runs import deliveries, transitions
from django_dcron.runs.creation import NewRun, insert_runs, new_run
from django_dcron.schedules.timetable import MICROSECOND, Timetable

logger = logging.getLogger("django_dcron.scheduler")

CLAIMED_BEFORE_A_CHANGE = 1000
"""About how many runs a change of definition creates for earlier due occurrences. One more run
stands for the rest.
"""
TIMING = frozenset(
    {"schedule", "timezone", "calendar_id", "calendar_policy", "starts_at", "ends_at", "after"}
)
"""The fields of a job that decide when it runs."""
WRITTEN_FIELDS = [field.name for field in Cursor._meta.concrete_fields if not field.primary_key]


@dataclass(slots=True)
class Placement:
    """What to write for one cursor."""

    cursor: Cursor
    is_new: bool = False
    is_current: bool = False
    """Whether the stored cursor is up to date, so that there is nothing to write."""
    due: list[NewRun] = field(default_factory=list)
    """The unsaved runs of the occurrences that were due by the previous definition."""
    enables: bool = False
    """Whether the job becomes enabled, so that its consecutive failures count from zero."""


def timetable_of(definition: Job | Cursor) -> Timetable:
    """Return the timetable of the definition. Raises ``InvalidSchedule``."""
    return Timetable(definition.parsed_schedule, definition.starts_at, definition.ends_at)


def runs_without_schedule(job: Job) -> bool:
    """Return whether the job needs no occurrences: it follows other jobs or is ``@never``."""
    try:
        return bool(job.after) or job.parsed_schedule.is_never
    except InvalidSchedule:
        return False


def is_exhausted(job: Job, now: datetime) -> bool:
    """Return whether the job needs occurrences and has none after ``now``.

    An invalid schedule isn't exhausted, because the validation reports it.
    """
    if runs_without_schedule(job):
        return False
    try:
        return timetable_of(job).first_after(now) is None
    except InvalidSchedule:
        return False


def starts_again(before: Job, job: Job, now: datetime) -> bool:
    """Return whether a change gives a finished job new occurrences, so that it becomes enabled.

    Nobody has paused a finished job. If the change itself pauses the job, it stays paused.
    """
    if not (before.is_finished and job.is_finished):
        return False
    return is_retimed(before, job) and not is_exhausted(job, now)


def is_retimed(before: Job, job: Job) -> bool:
    return any(getattr(before, name) != getattr(job, name) for name in TIMING)


def place_cursor(job: Job, now: datetime, using: str) -> Cursor:
    """Place and save the cursor of one job."""
    cursor = Cursor.objects.using(using).filter(pk=job.pk).first()
    placement = decide_placement(job, cursor, now)
    write_placements([placement], now, using)
    return placement.cursor


def decide_placement(
    job: Job,
    cursor: Cursor | None,
    now: datetime,
    before: Job | None = None,
    since: datetime | None = None,
    *,
    resumes: bool = False,
    phase: datetime | None = None,
) -> Placement:
    """Compute the job's cursor from its definition, unless it is up to date and not quarantined.

    ``cursor``: The stored cursor, which is changed; None if there is none.
    ``before``: The previous definition, if known. Its policies decide about the occurrences that
    were due, unless the job was quarantined. If its pause is over and no node has noticed, the
    occurrences since the end of the pause are due.
    ``since``: The instant after which occurrences count, instead of ``now``. If
    ``cursor.placed_at`` is later, it counts instead.
    ``phase``: The occurrence from which ``@every`` counts, if there is no cursor.
    ``resumes``: Whether a user resumes the job now. If a node has ended the pause early, the
    occurrences before its end count, too.
    """
    if cursor is None:
        placement = Placement(Cursor(job=job, previous_at=phase), is_new=True)
        _set_cursor(placement.cursor, job, now)
        return placement
    pause_over = _end_of_unnoticed_pause(before or job, now)
    if ends_early := resumes and cursor.is_resumed_early(now):
        cursor.resumes_at = None
    is_current = matches_definition(cursor, job) and not cursor.problem
    if is_current and not pause_over and not ends_early:
        return Placement(cursor, is_current=True)
    policies_of = job if before is None or cursor.problem else before
    if pause_over:
        _make_due_since(pause_over, cursor)
    since = since or _end_of_pause_ended_early(cursor, job, now)
    placement = Placement(cursor, enables=job.enabled and not cursor.enabled)
    placement.due = _claim_due(cursor, policies_of, now)
    _set_cursor(cursor, job, max(since, cursor.placed_at) if since else now)
    cursor.resumes_at = since + MICROSECOND if since and since >= now else None
    return placement


def write_placements(placements: Iterable[Placement], now: datetime, using: str) -> None:
    """Write the cursors, and the runs and statistics that change with them.

    The number of statements doesn't depend on the number of cursors, except that the database
    limits the size of a statement. ``now``: the instant of the decisions.
    """
    moved = [each for each in placements if not each.is_current]
    if not moved:
        return
    statistics = Statistics.objects.using(using)
    if new := [each.cursor.job for each in moved if each.is_new]:
        statistics.bulk_create([Statistics(job=job) for job in new], ignore_conflicts=True)
    # The deletion locks runs, and the insertion counts in the statistics: see ``locking``.
    if placed_before := [each.cursor.pk for each in moved if not each.is_new]:
        deliveries.delete_claimed_ahead(placed_before, now, using)
    if due := [run for each in moved for run in each.due]:
        insert_runs(due, using)
    if enabled := [each.cursor.pk for each in moved if each.enables]:
        statistics.filter(pk__in=enabled).update(consecutive_failures=0)
    Cursor.objects.using(using).bulk_create(
        [each.cursor for each in moved],
        update_conflicts=True,
        update_fields=WRITTEN_FIELDS,
        unique_fields=_unique_fields(using),
    )


def _unique_fields(using: str) -> list[str] | None:
    """Return the key of an upsert; None on MariaDB, whose upsert considers every unique key."""
    named = connections[using].features.supports_update_conflicts_with_target
    return ["job"] if named else None


def require_occurrence(job: Job, cursor: Cursor) -> None:
    """Require a future occurrence of an enabled job, as the validation does.

    The job's last occurrence may have passed since the validation, for example while the save
    waited for a lock. It may also lie before the end of the job's pause. Raises
    ``ValidationError``.
    """
    if (
        job.enabled
        and cursor.next_at is None
        and not cursor.problem
        and not runs_without_schedule(job)
    ):
        text = gettext("%(schedule)s has no occurrence after %(start)s.") % {
            "schedule": job.schedule,
            "start": cursor.placed_at.isoformat(timespec="seconds"),
        }
        raise ValidationError({"schedule": ValidationError(text, code="exhausted")})


def _end_of_pause_ended_early(cursor: Cursor, job: Job, now: datetime) -> datetime | None:
    """Return the instant after which occurrences count if a node has ended the pause early.

    Returns None if the pause is over.
    """
    if not (cursor.enabled and job.enabled) or not cursor.is_resumed_early(now):
        return None
    return cursor.resumes_at and cursor.resumes_at - MICROSECOND


def _end_of_unnoticed_pause(job: Job, now: datetime) -> datetime | None:
    """Return when the job's pause was over, if no node has noticed that yet."""
    over = not job.enabled and job.paused_until is not None and job.paused_until <= now
    return job.paused_until if over else None


def _make_due_since(instant: datetime, cursor: Cursor) -> None:
    """Make the occurrences since ``instant`` due.

    If the definition is invalid, assume that an occurrence has been due since then.
    """
    after = max(instant - MICROSECOND, cursor.placed_at)
    try:
        cursor.next_at = timetable_of(cursor).first_after(after, cursor.previous_at)
    except InvalidSchedule:
        cursor.next_at = after + MICROSECOND


def _claim_due(cursor: Cursor, job: Job, now: datetime) -> list[NewRun]:
    """Claim what is due by the definition that ``cursor`` was computed from.

    The leader of the job's shard dispatches these runs.
    """
    rows: list[NewRun] = []

    def account_for(planned: PlannedRun, reason: str = "") -> None:
        rows.append(
            new_run(
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
                late_before = now + MICROSECOND
                misfire = Misfire(MisfirePolicy.SKIP, job.misfire_grace, 1)
                reason = "the job was changed before all due occurrences could be claimed"
            plan = timetable.plan_claim(
                cursor.next_at, late_before=late_before, horizon=now, misfire=misfire
            )
            for planned in plan.planned_runs:
                account_for(planned, reason)
            cursor.next_at, cursor.previous_at = plan.next_at, plan.previous_at
    # An invalid definition must not prevent its own replacement.
    except Exception as error:
        extra = {"event": "due_not_claimed", "job": str(job)}
        logger.exception("due occurrences not recorded: job=%s", job, extra=extra)
        if cursor.next_at is not None and cursor.next_at <= now:
            reason = (
                f"the occurrences that were due before the job was changed are unknown: {error}"
            )
            account_for(PlannedRun(cursor.next_at, missed=True), reason)
            # An interval counts from here. Occurrences are whole seconds.
            cursor.previous_at = cursor.next_at.replace(microsecond=0)
    return rows


def matches_definition(cursor: Cursor, job: Job) -> bool:
    return all(getattr(cursor, field) == getattr(job, field) for field in COPIED_FIELDS)


def _set_cursor(cursor: Cursor, job: Job, now: datetime) -> None:
    """Copy the job's definition to the cursor, and set its next occurrence after ``now``."""
    for name in COPIED_FIELDS:
        setattr(cursor, name, getattr(job, name))
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
