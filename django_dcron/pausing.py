"""Pausing and resuming: by people and code, by the job's own circuit, and when a pause is over.

Invariants:

- Each is a change of definition: one transaction, under the job's locks, with the cursor (``definition``).
- A pause until T, by the database's clock, ends by itself, once, when a node looks: the occurrences before T are not made up
  for, those from T on are the job's again, however late the look is and whoever changes the job before it. A node looks as far
  ahead as it claims, so that what is due at T is on time. Who changes the pause before T changes its end.
- The circuit opens only for a job that could run, and never replaces somebody's reason for a pause.
- One job's trouble keeps no other from its pause or its end.
"""

from __future__ import annotations

import logging
from copy import copy
from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q

from django_dcron import transitions
from django_dcron.conf import settings
from django_dcron.definition import EXHAUSTED, lock, lock_version, place, rest, runs_otherwise, timetable_of
from django_dcron.domain.counts_in_words import number_of
from django_dcron.domain.lifecycle import Trigger
from django_dcron.domain.timetable import END, INSTANT, WIDEST_OFFSET
from django_dcron.exceptions import NAIVE, InvalidSchedule, InvalidValue, NotPossible
from django_dcron.models import Cursor, Job
from django_dcron.models.database import (
    UtcNow,
    alias_for,
    database_now,
    despite_contention,
    keeping_the_others_going,
)
from django_dcron.models.job import JobQuerySet
from django_dcron.phrases import Phrase
from django_dcron.phrases import gettext_noop as _

logger = logging.getLogger("django_dcron.scheduler")

SWITCH_FIELDS = ("enabled", "pause_reason", "paused_until")
SWITCHED_AT_ONCE = 500
PAUSED_ITSELF = "paused itself after "
"""How the reason begins when it is the circuit that has opened."""


def pause(job: Job, reason: str = "", until: datetime | None = None) -> Job:
    """No new occurrences; what runs goes on, what was claimed ahead is withdrawn.

    ``until``: the job resumes by itself then; by default it does not. Pausing anew says both anew. Raises ``ValueError``
    for a time that has no zone or is not ahead.
    """
    if until is not None:
        _check_ahead(until, database_now(alias_for(Job)))
        if abs(until.utcoffset() or timedelta()) > WIDEST_OFFSET:
            until = until.astimezone(UTC)
    return _switch(job, enabled=False, reason=reason[:255], until=until)


def _check_ahead(until: datetime, now: datetime) -> None:
    if until.utcoffset() is None:
        raise InvalidValue("until", NAIVE, value=until.isoformat())
    if until <= now:
        raise InvalidValue(
            "until",
            _("%(value)s has passed (allowed: after now, %(now)s)"),
            value=until.isoformat(),
            now=now.isoformat(timespec="seconds"),
        )
    if until >= END:
        raise InvalidValue(
            "until", _("%(value)s is too late (allowed: before the year 2200)"), value=until.isoformat()
        )


def resume(job: Job) -> Job:
    """New occurrences from now on, and failures in a row are counted anew. Raises ``NotPossible`` when there are none, and
    no backfilled run waits: if one does, the job is back where it was when its schedule had come to its end."""
    return _switch(job, enabled=True, reason="")


def _switch(job: Job, *, enabled: bool, reason: str, until: datetime | None = None) -> Job:
    using = alias_for(Job)
    return despite_contention(lambda: _switch_once(job, enabled, reason, using, until), using)


def _switch_once(job: Job, enabled: bool, reason: str, using: str, until: datetime | None = None) -> Job:
    with transaction.atomic(using=using):
        row = lock_version(job.pk, None, using)
        is_current = job.version == row.version
        if (row.enabled, row.pause_reason, row.paused_until) != (enabled, reason, until):
            before = copy(row)
            _write_switch(row, enabled, reason, until, using)
            cursor = place(row, database_now(using), using, before)
            if enabled and cursor.next_at is None and not runs_otherwise(row):
                if cursor.problem or not transitions.runs().in_line(row.pk).exists():
                    raise NotPossible(
                        _("%(job)s cannot be resumed: %(why)s."),
                        job=str(row),
                        why=_nothing_to_come(row, cursor),
                    )
                rest([row.pk], using)  # what was backfilled goes on
                row.enabled, row.pause_reason, row.version = False, EXHAUSTED, row.version + 1
        for name in SWITCH_FIELDS:
            setattr(job, name, getattr(row, name))
        if is_current:  # else what it says of other fields is old, and a save of it is to conflict
            job.version = row.version
    return job


def _nothing_to_come(job: Job, cursor: Cursor) -> Phrase:
    try:
        timetable_of(job)
    except InvalidSchedule as error:
        return error.phrase
    return Phrase(cursor.problem or EXHAUSTED)


def _write_switch(row: Job, enabled: bool, reason: str, until: datetime | None, using: str) -> None:
    row.enabled, row.pause_reason, row.paused_until = enabled, reason, until
    row.version += 1
    row.save(using=using, update_fields=(*SWITCH_FIELDS, "version", "updated_at"))


def open_circuits(jobs: JobQuerySet) -> int:
    """Pause those of ``jobs`` that keep failing. Returns how many.

    One that somebody has paused keeps their reason; one resumed since counts anew.
    """
    paused = 0
    for job in _failing(jobs)[:SWITCHED_AT_ONCE]:
        with keeping_the_others_going(f"the pause of job {job}", jobs.db):
            paused += _open_circuit(job, jobs)
    return paused


def _failing(jobs: JobQuerySet) -> JobQuerySet:
    line = transitions.runs().waiting().filter(job=OuterRef("pk"), trigger=Trigger.BACKFILL)
    able = Q(enabled=True, cursor__enabled=True) | Q(Exists(line), enabled=False, pause_reason=EXHAUSTED)
    return jobs.filter(able, statistics__failures_in_a_row__gte=F("pause_after_failures"))


def _open_circuit(job: Job, jobs: JobQuerySet) -> bool:
    reason = PAUSED_ITSELF + number_of(job.pause_after_failures or 1, "failed run", "failed runs in a row")
    with transaction.atomic(using=jobs.db):
        if lock(job.pk, jobs.db) is None or not _failing(jobs.filter(pk=job.pk)).exists():
            return False  # somebody was here between the look and the lock
        _switch_once(job, enabled=False, reason=reason, using=jobs.db)
    logger.error("job %s %s", job, reason, extra={"event": "circuit_opened", "job": str(job)})
    return True


def end_pauses(jobs: JobQuerySet) -> int:
    """Resume those of ``jobs`` whose pause is over, or soon will be. Returns how many."""
    over = jobs.filter(enabled=False, paused_until__lte=UtcNow() + settings.LOOK_AHEAD)
    ended = 0
    # Those that could not be read last, in case they are many.
    for job_id in over.order_by("cursor__problem", "paused_until").values_list("pk", flat=True)[
        :SWITCHED_AT_ONCE
    ]:
        with keeping_the_others_going(f"the end of the pause of job {job_id}", jobs.db):
            ended += _end_pause(job_id, jobs.db)
    return ended


def _end_pause(job_id: int, using: str) -> bool:
    with transaction.atomic(using=using):
        job, now = lock(job_id, using, nowait=True), database_now(using)
        if (
            job is None
            or job.enabled
            or job.paused_until is None
            or job.paused_until > now + settings.LOOK_AHEAD
        ):
            return False  # somebody was here between the look and the lock
        until = job.paused_until
        try:
            timetable_of(job)
        except InvalidSchedule as error:
            _leave_paused(job, error, using)
            return False
        _write_switch(job, True, "", None, using)
        cursor = place(job, now, using, since=until - INSTANT)
        if cursor.next_at is None and not cursor.problem:
            rest([job_id], using)  # nothing to come: nobody is there to be told, as with ``resume``
    logger.info(
        "job %s resumed: it was paused until %s", job, until, extra={"event": "resumed", "job": str(job)}
    )
    return True


def _leave_paused(job: Job, error: InvalidSchedule, using: str) -> None:
    """Until it is mended, or a node looks that can read it: then what came since the pause's end is the job's own."""
    if Cursor.objects.using(using).filter(pk=job.pk, problem="").update(problem=str(error)):
        logger.error(
            "the pause of job %s cannot end: %s", job, error, extra={"event": "quarantined", "job": str(job)}
        )
