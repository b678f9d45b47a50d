"""Move the cursors of jobs that were changed without ``save`` or quarantined.

Invariants:

- ``move_outdated_cursors`` compares rows to find definitions that were written without ``saving``.
- ``placement`` decides where a cursor is placed, so a change made while no node was running loses
  no occurrence.
- An error in one job doesn't stop the cursors of the others from moving.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.db import transaction
from django.db.models import F, FilteredRelation, Q

from django_dcron.db.contention import isolating_errors
from django_dcron.db.now import database_now
from django_dcron.jobs.locking import lock_job
from django_dcron.jobs.placement import place_cursor, runs_without_schedule
from django_dcron.models import Cursor, Job
from django_dcron.models.cursor import same_definition
from django_dcron.models.job import JobQuerySet
from django_dcron.models.job_states import EXHAUSTED

MOVED_AT_ONCE = 500


def disable_exhausted(exhausted: Iterable[int], using: str) -> None:
    """Disable jobs without further occurrences, unless they run without a schedule.

    The caller has locked their cursors.
    """
    jobs = Job.objects.using(using).filter(pk__in=exhausted)
    to_disable = [job.pk for job in jobs if not runs_without_schedule(job)]
    Job.objects.using(using).filter(pk__in=to_disable, enabled=True).update(
        enabled=False, pause_reason=EXHAUSTED, paused_until=None, version=F("version") + 1
    )
    Cursor.objects.using(using).filter(pk__in=to_disable).update(enabled=False)


def move_outdated_cursors(now: datetime, jobs: JobQuerySet) -> int:
    """Move the cursors of the ``jobs`` that are new or were changed without ``save``.

    Returns their number.
    """
    return move_cursors(find_outdated(jobs), now, jobs.db)


def find_outdated(jobs: JobQuerySet, first: int = 0, end: int | None = None) -> list[int]:
    """Return the keys of up to ``MOVED_AT_ONCE`` such jobs, lowest first.

    Only keys from ``first`` until ``end`` (exclusive) are compared. With these limits for both
    tables and in this order, a database reads no other rows, however many there are.
    """
    limits, of_cursor = Q(pk__gte=first), Q(cursor__job__gte=first)
    if end is not None:
        limits, of_cursor = limits & Q(pk__lt=end), of_cursor & Q(cursor__job__lt=end)
    compared = jobs.filter(limits).alias(own=FilteredRelation("cursor", condition=of_cursor))
    outdated = compared.filter(Q(own=None) | ~same_definition("own__", ""))
    return list(outdated.order_by("pk").values_list("pk", flat=True)[:MOVED_AT_ONCE])


def retry_quarantined(now: datetime, jobs: JobQuerySet) -> int:
    """Try quarantined ``jobs`` again: this node may accept them, or the cause may be corrected.

    If the cursor has a next occurrence, the claim tries again from there. Returns the number of
    jobs tried.
    """
    quarantined = jobs.filter(enabled=True, cursor__problem__gt="").values_list("pk", flat=True)
    placed = list(quarantined.exclude(cursor__next_at=None)[:MOVED_AT_ONCE])
    unplaced = list(quarantined.filter(cursor__next_at=None)[:MOVED_AT_ONCE])
    tried = Cursor.objects.using(jobs.db).filter(pk__in=placed).update(problem="")
    return tried + move_cursors(unplaced, now, jobs.db)


def move_cursors(job_ids: Iterable[int], now: datetime, using: str) -> int:
    """Move each cursor in a transaction of its own. Returns how many succeeded."""
    moved = 0
    for job_id in job_ids:
        with isolating_errors(f"the change of job {job_id}", using):
            moved += _move_cursor(job_id, now, using)
    return moved


def _move_cursor(job_id: int, now: datetime, using: str) -> bool:
    with transaction.atomic(using=using):
        job = lock_job(job_id, using, nowait=True)
        if job is None:
            return False
        if job.enabled and job.paused_until:  # this end would also end a later pause
            Job.objects.using(using).filter(pk=job_id).update(paused_until=None)
        # The caller read ``now`` some time ago. Occurrences that fell due since then must be kept.
        cursor = place_cursor(job, max(now, database_now(using)), using)
        if job.enabled and cursor.next_at is None and not cursor.problem:
            disable_exhausted([job_id], using)
    return True
