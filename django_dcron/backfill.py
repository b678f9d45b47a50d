"""Backfill: runs for occurrences that have passed and have none.

Invariants:

- Only occurrences before the job's cursor are made: from there on they are the schedule's own, and a node claims them.
- Where older rows were pruned, it is not known which occurrences before those that are kept have run: none of them is made,
  unless the caller says so.
- An occurrence that has a run is left alone, whatever became of it; UNIQUE (job, scheduled_at) decides between two who
  backfill at once. One that was merely counted as missed, on another's row, has no run of its own and is made.
- The runs are made waiting. A node lets them run oldest first and a few at a time (``scheduler.releasing``).
- The work of one call is bounded, whatever the range; what is left over is where the next call begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from django.db import transaction

from django_dcron import definition
from django_dcron.domain.counts_in_words import number_of
from django_dcron.domain.lifecycle import State, Trigger
from django_dcron.domain.overlap import turn_of
from django_dcron.domain.timetable import BEGIN, INSTANT
from django_dcron.exceptions import NAIVE, Conflict, InvalidValue, NotPossible
from django_dcron.models import Cursor, Job, Run
from django_dcron.models.cursor import COPIED_FIELDS
from django_dcron.models.database import alias_for, database_now, despite_contention
from django_dcron.models.run import new_run_id
from django_dcron.phrases import gettext_noop as _
from django_dcron.pruning import kept_from

LIMIT = 1000
LARGEST_LIMIT = 10_000
LOOKED_AT_ONCE = 1000
LOOKED_AT = 100_000
"""How many occurrences one call looks at, whether they have a run or not."""
INSERTED_AT_ONCE = 2000

WHY_WAITING = "backfilled; its turn has not come yet"


@dataclass(frozen=True, slots=True)
class Backfill:
    """What a backfill has made, or would make."""

    occurrences: tuple[datetime, ...]
    """Those that get a run, oldest first."""
    have_run: int
    """How many others in the range have a run already."""
    continue_from: datetime | None
    """There may be more: the ``start`` with which to go on. None: the range is done."""
    until: datetime
    """Where the range ended, not included: at its end, now, or at the job's cursor, from where on a node claims by itself."""

    def __str__(self) -> str:
        said = number_of(len(self.occurrences), "occurrence")
        if self.occurrences:
            said += f" from {self.occurrences[0].isoformat()} to {self.occurrences[-1].isoformat()}"
        if self.have_run:
            said += f"; {number_of(self.have_run, 'other has', 'others have')} a run already"
        if self.continue_from:
            said += f"; go on with start={self.continue_from.isoformat()}"
        return said


def backfill(
    job: Job,
    start: datetime,
    end: datetime,
    *,
    limit: int = LIMIT,
    dry_run: bool = False,
    over_pruned: bool = False,
) -> Backfill:
    """Make runs for the job's occurrences from ``start`` to just before ``end`` that have none, oldest first.

    They are the occurrences of its present schedule, between its own start and end, also from before it was made. They run
    a few at a time behind what is due anyway, while the job is not paused. At most ``limit`` are made at once. With
    ``dry_run`` nothing is written. With ``over_pruned`` they are also made where older rows were pruned: what has run there, and
    is forgotten, runs again. Raises ``ValueError``, ``InvalidSchedule``, ``Conflict`` if the job was changed since it
    was read, or ``NotPossible``.
    """
    using = alias_for(Run)
    now = database_now(using)
    start, end = _checked(start, end, limit, now)
    planned = _plan(job, start, end, limit, using)
    if planned.occurrences and not over_pruned:
        _refuse_what_is_forgotten(job, planned.occurrences[0], now)
    return planned if dry_run else _make(job, planned, now, using)


def _checked(start: datetime, end: datetime, limit: int, now: datetime) -> tuple[datetime, datetime]:
    for name, instant in (("start", start), ("end", end)):
        if instant.utcoffset() is None:
            raise InvalidValue(name, NAIVE, value=instant.isoformat())
    if start < BEGIN:
        raise InvalidValue(
            "start", _("%(value)s is too early (allowed: from 1970 on)"), value=start.isoformat()
        )
    if start >= end:
        raise InvalidValue(
            "start",
            _("%(value)s is not before end, %(end)s (allowed: a time before end)"),
            value=start.isoformat(),
            end=end.isoformat(),
        )
    if start >= now:
        raise InvalidValue(
            "start",
            _("%(value)s has not come yet (allowed: before now, %(now)s)"),
            value=start.isoformat(),
            now=now.isoformat(timespec="seconds"),
        )
    if not 1 <= limit <= LARGEST_LIMIT:
        raise InvalidValue(
            "limit",
            _("%(value)d runs cannot be made at once (allowed: 1 to %(most)d)"),
            value=limit,
            most=LARGEST_LIMIT,
        )
    return start.astimezone(UTC), min(end, now).astimezone(UTC)


def _refuse_what_is_forgotten(job: Job, oldest: datetime, now: datetime) -> None:
    if kept := kept_from(job.pk, oldest, now):
        raise NotPossible(
            _(
                "%(job)s cannot be backfilled from %(oldest)s on: its runs before %(kept)s were pruned, so it is not known which "
                "of those occurrences have run. Start there; or say over_pruned=True, and all of them run."
            ),
            job=str(job),
            oldest=oldest.isoformat(),
            kept=kept.isoformat(),
        )


def _plan(job: Job, start: datetime, end: datetime, limit: int, using: str) -> Backfill:
    cursor = _cursor_of(job, using)
    # From there on the schedule claims them; of a paused job, from the end of its pause on, which may be over.
    claimed_from = cursor.next_at or cursor.job.paused_until
    until = min(end, claimed_from) if claimed_from else end
    ahead = _occurrences(cursor, start, until)
    without_run: list[datetime] = []
    looked_at = 0
    continue_from = next(ahead, None)
    while continue_from is not None and len(without_run) < limit and looked_at < LOOKED_AT:
        some = [continue_from, *islice(ahead, LOOKED_AT_ONCE - 1)]
        have_run = _with_run(job, some[0], some[-1], using)
        for number, occurrence in enumerate(some):
            if len(without_run) == limit:
                looked_at += number
                return Backfill(tuple(without_run), looked_at - limit, occurrence, until)
            if occurrence not in have_run:
                without_run.append(occurrence)
        looked_at += len(some)
        continue_from = next(ahead, None)
    return Backfill(tuple(without_run), looked_at - len(without_run), continue_from, until)


def _cursor_of(job: Job, using: str) -> Cursor:
    """The cursor, which stands for the definition that the job has now and that ``job`` was read with."""
    cursor = Cursor.objects.using(using).select_related("job").filter(pk=job.pk).first()
    if cursor is None:
        raise NotPossible(
            _("%(job)s cannot be backfilled: it was not saved with control.save, or was deleted."),
            job=str(job),
        )
    if not definition.stands_for(cursor, cursor.job):
        text = _(
            "%(job)s cannot be backfilled now: it was changed past control.save, and no node has caught up with it yet."
        )
        raise NotPossible(text, job=str(job))
    if any(getattr(cursor, field) != getattr(job, field) for field in COPIED_FIELDS if field != "enabled"):
        raise Conflict(_("%(job)s was changed since it was read; nothing was backfilled."), job=str(job))
    return cursor


def _occurrences(cursor: Cursor, start: datetime, until: datetime) -> Iterator[datetime]:
    """From ``start`` to just before ``until``."""
    timetable = definition.timetable_of(cursor)
    phase = cursor.next_at or cursor.previous_at
    if timetable.schedule.interval is not None and timetable.starts_at is None and phase is None:
        text = _(
            "%(job)s cannot be backfilled: nothing says from when its interval counts. Give it a start, or enable it."
        )
        raise NotPossible(text, job=str(cursor.job))
    occurrence = timetable.first_after(start - INSTANT, phase)
    while occurrence is not None and occurrence < until:
        yield occurrence
        occurrence = timetable.next_after(occurrence)


def _with_run(job: Job, first: datetime, last: datetime, using: str) -> set[datetime]:
    runs = Run.objects.using(using).filter(job=job.pk, scheduled_at__gte=first, scheduled_at__lte=last)
    return set(runs.order_by().values_list("scheduled_at", flat=True))


def _make(job: Job, planned: Backfill, now: datetime, using: str) -> Backfill:
    rows = [
        Run(
            id=new_run_id(),
            job_id=job.pk,
            scheduled_at=occurrence,
            due_at=occurrence,
            claimed_at=now,
            trigger=Trigger.BACKFILL,
            state=State.WAITING,
            slot=turn_of(job.pk, occurrence),
            reason=WHY_WAITING,
        )
        for occurrence in planned.occurrences
    ]
    made = despite_contention(lambda: _insert(job, rows, using), using)
    taken = len(rows) - len(made)
    return Backfill(tuple(made), planned.have_run + taken, planned.continue_from, planned.until)


def _insert(job: Job, rows: list[Run], using: str) -> list[datetime]:
    """The occurrences whose run is ours: one that somebody else has made meanwhile keeps that one."""
    runs = Run.objects.using(using)
    with transaction.atomic(using=using):
        # In the order of a claim, which passes over a job whose cursor is locked: the caller's transaction may be long.
        if definition.lock(job.pk, using) is None:
            raise NotPossible(_("%(job)s could not be backfilled: it was deleted meanwhile."), job=str(job))
        _cursor_of(job, using)  # it may have been changed since the plan was made
        runs.bulk_create(rows, ignore_conflicts=True, batch_size=INSERTED_AT_ONCE)
    if not rows:
        return []
    between = runs.filter(
        job=job.pk, scheduled_at__gte=rows[0].scheduled_at, scheduled_at__lte=rows[-1].scheduled_at
    )
    made = set(between.filter(trigger=Trigger.BACKFILL).values_list("pk", flat=True))
    return [row.scheduled_at for row in rows if row.pk in made]
