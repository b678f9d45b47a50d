"""Backfill: create runs for past occurrences that have none.

Invariants:

- Only occurrences before the job's cursor are backfilled. A node claims the later ones.
- Where older rows were pruned, it is unknown which occurrences have run. They aren't backfilled
  unless the caller asks for it.
- An occurrence that has a run is skipped, regardless of the run's state. UNIQUE (job, scheduled_at)
  decides between two concurrent backfills.
- An occurrence that is only counted in the ``missed_before`` of a later run has no run of its own,
  so it is backfilled.
- The runs are created in the state ``waiting``. A node releases them oldest first, a few at a time
  (``scheduler.backfill_release``).
- One call does a bounded amount of work, whatever the range. The next call continues from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice

from django.db import transaction
from django.db.models import BooleanField, Exists, ExpressionWrapper, OuterRef, Q

from django_dcron.db.contention import despite_contention
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import NAIVE_DATETIME, Conflict, InvalidValue, NotPossible
from django_dcron.jobs import locking, placement
from django_dcron.jobs.audit.recording import AuditedChange, record_changes
from django_dcron.jobs.representation import to_json
from django_dcron.jobs.row_arguments import require_row
from django_dcron.models import AuditAction, Cursor, Job, Run
from django_dcron.models.cursor import COPIED_FIELDS
from django_dcron.policies.lifecycle import State, Trigger
from django_dcron.runs.creation import backfill_run
from django_dcron.runs.retention import kept_from
from django_dcron.schedules.timetable import BEGIN, MICROSECOND
from django_dcron.utils.counts import number_of
from django_dcron.utils.messages import gettext_noop as _

DEFAULT_LIMIT = 1000
MAX_LIMIT = 10_000
BATCH_SIZE = 1000
READ_LIMIT = 100_000
"""The maximum number of occurrences that one call checks, with or without a run."""
INSERTED_AT_ONCE = 2000

UNSUCCESSFUL = (State.MISSED, State.FAILED, State.CANCELLED)
"""The states of a run that is usually run again."""


@dataclass(frozen=True, slots=True)
class Backfill:
    """The result of ``backfill``: the runs that it created or, with ``dry_run``, would create."""

    occurrences: tuple[datetime, ...]
    """The occurrences that get a run, oldest first."""
    existing_runs: int
    """Number of other occurrences in the range that already have a run."""
    continue_from: datetime | None
    """The ``start`` for the next call if there may be more occurrences; None if not."""
    until: datetime
    """End of the range (excluded): the earliest of the requested end, now and the job's cursor.

    A paused job has the end of its pause instead of the cursor.
    """
    unsuccessful: tuple[datetime, ...] = ()
    """The occurrences whose run is missed, failed or cancelled, and wasn't rerun, oldest first."""

    def __str__(self) -> str:
        summary = number_of(len(self.occurrences), "occurrence")
        if self.occurrences:
            summary += (
                f" from {self.occurrences[0].isoformat()} to {self.occurrences[-1].isoformat()}"
            )
        if self.existing_runs:
            others = number_of(self.existing_runs, "other already has", "others already have")
            summary += f"; {others} a run"
        if self.continue_from:
            summary += f"; continue with start={self.continue_from.isoformat()}"
        return summary


def backfill(
    job: Job,
    start: datetime,
    end: datetime,
    *,
    limit: int = DEFAULT_LIMIT,
    dry_run: bool = False,
    over_pruned: bool = False,
) -> Backfill:
    """Create runs for the past occurrences of ``job`` that have none.

    The range is from ``start`` (included) to ``end`` (excluded). The occurrences are those of the
    job's current schedule, between its ``starts_at`` and ``ends_at``. The runs execute oldest
    first, a few at a time, while the job isn't paused.

    ``limit`` is the maximum number of runs. With ``dry_run``, nothing is written. With
    ``over_pruned``, runs are also created where older rows were pruned, so occurrences that ran
    before run again.

    Raises:

    - ``InvalidValue`` if a time is naive, if ``start`` is before 1970, in the future or not before
      ``end``, or if ``limit`` isn't between 1 and 10,000.
    - ``InvalidSchedule`` if the stored schedule is invalid.
    - ``Conflict`` if the job was changed since it was read.
    - ``NotPossible`` if the job has been deleted, if no node has processed its last change, if its
      interval has no starting point, or if runs of the range were pruned.
    """
    require_row(job, Job)
    using = alias_for(Run)
    now = database_now(using)
    zone = start.tzinfo
    start, end = _check_range(start, end, limit, now)
    planned = _plan(job, start, end, limit, using)
    if planned.occurrences and not over_pruned:
        _refuse_pruned_range(job, planned.occurrences[0].astimezone(zone), now)
    return planned if dry_run else _create_runs(job, planned, now, using)


def _check_range(
    start: datetime, end: datetime, limit: int, now: datetime
) -> tuple[datetime, datetime]:
    for name, instant in (("start", start), ("end", end)):
        if instant.utcoffset() is None:
            raise InvalidValue(name, NAIVE_DATETIME, value=instant.isoformat(), code="naive")
    if start < BEGIN:
        raise InvalidValue(
            "start",
            _("%(value)s is too early (allowed: 1970 or later)"),
            value=start.isoformat(),
            code="too_early",
        )
    if start >= end:
        raise InvalidValue(
            "start",
            _("%(value)s isn't before the end, %(end)s"),
            value=start.isoformat(),
            end=end.isoformat(),
            code="not_before_end",
        )
    if start >= now:
        raise InvalidValue(
            "start",
            _("%(value)s is in the future (allowed: before now, %(now)s)"),
            value=start.isoformat(),
            now=now.astimezone(start.tzinfo).isoformat(timespec="seconds"),
            code="in_the_future",
        )
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidValue(
            "limit",
            _("%(value)d runs can't be created at once (allowed: 1 to %(most)d)"),
            value=limit,
            most=MAX_LIMIT,
            code="invalid_limit",
        )
    return start.astimezone(UTC), min(end, now).astimezone(UTC)


def _refuse_pruned_range(job: Job, oldest: datetime, now: datetime) -> None:
    if kept := kept_from(job.pk, oldest, now):
        raise NotPossible(
            _(
                "%(job)s can't be backfilled from %(oldest)s: its runs before %(kept)s "
                "were pruned, so it's unknown which of these occurrences ran. Start at "
                "%(kept)s, or run all of them with over_pruned=True (--over-pruned on the "
                "command line)."
            ),
            job=str(job),
            oldest=oldest.isoformat(),
            kept=kept.astimezone(oldest.tzinfo).isoformat(),
            code="pruned",
        )


def _plan(job: Job, start: datetime, end: datetime, limit: int, using: str) -> Backfill:
    cursor = _cursor_of(job, using)
    # Nodes claim the later occurrences. For a paused job, these are the occurrences after its
    # pause, even if the pause has already ended.
    claimed_from = cursor.next_at or cursor.job.paused_until
    until = min(end, claimed_from) if claimed_from else end
    ahead = _occurrences(cursor, start, until)
    without_run: list[datetime] = []
    unsuccessful: list[datetime] = []
    examined, continue_from = 0, None
    for occurrence, is_unsuccessful in _with_runs(job, ahead, using):
        if len(without_run) == limit or examined == READ_LIMIT:
            continue_from = occurrence
            break
        examined += 1
        if is_unsuccessful is None:
            without_run.append(occurrence)
        elif is_unsuccessful:
            unsuccessful.append(occurrence)
    return Backfill(
        occurrences=tuple(without_run),
        existing_runs=examined - len(without_run),
        continue_from=continue_from,
        until=until,
        unsuccessful=tuple(unsuccessful),
    )


def _with_runs(
    job: Job, occurrences: Iterator[datetime], using: str
) -> Iterator[tuple[datetime, bool | None]]:
    """Yield each occurrence, and whether its run is unsuccessful; None if it has no run."""
    while batch := list(islice(occurrences, BATCH_SIZE)):
        found = _unsuccessful_by_occurrence(job, batch[0], batch[-1], using)
        for occurrence in batch:
            yield occurrence, found.get(occurrence)


def _cursor_of(job: Job, using: str) -> Cursor:
    """Return the cursor. It must match the definition in the database and the one in ``job``."""
    cursor = Cursor.objects.using(using).select_related("job").filter(pk=job.pk).first()
    if cursor is None:
        raise NotPossible(
            _(
                "%(job)s can't be backfilled: it wasn't saved with control.save, or it has "
                "been deleted."
            ),
            job=str(job),
            code="not_saved",
        )
    if not placement.matches_definition(cursor, cursor.job):
        text = _(
            "%(job)s can't be backfilled yet: it was changed without control.save, and no "
            "node has processed the change. Try again when a node is running."
        )
        raise NotPossible(text, job=str(job), code="not_placed")
    if any(
        getattr(cursor, field) != getattr(job, field)
        for field in COPIED_FIELDS
        if field != "enabled"
    ):
        raise Conflict(
            _(
                "%(job)s has changed since it was read. Nothing was backfilled. Reload it "
                "and try again."
            ),
            job=str(job),
            code="changed",
        )
    return cursor


def _occurrences(cursor: Cursor, start: datetime, until: datetime) -> Iterator[datetime]:
    """Yield the occurrences from ``start`` (included) to ``until`` (excluded)."""
    timetable = placement.timetable_of(cursor)
    phase = cursor.next_at or cursor.previous_at
    if timetable.schedule.interval is not None and timetable.starts_at is None and phase is None:
        text = _(
            "%(job)s can't be backfilled: its interval has no starting point. Set a start "
            "time, or enable the job."
        )
        raise NotPossible(text, job=str(cursor.job), code="no_starting_point")
    occurrence = timetable.first_after(start - MICROSECOND, phase)
    while occurrence is not None and occurrence < until:
        yield occurrence
        occurrence = timetable.next_after(occurrence)


def _unsuccessful_by_occurrence(
    job: Job, first: datetime, last: datetime, using: str
) -> dict[datetime, bool]:
    """Return, for each occurrence from ``first`` to ``last`` with a run, if it is unsuccessful.

    A run is unsuccessful if it is missed, failed or cancelled, and wasn't run again.
    """
    runs = Run.objects.using(using).filter(
        job=job.pk, scheduled_at__gte=first, scheduled_at__lte=last
    )
    reruns = Run.objects.using(using).filter(rerun_of=OuterRef("pk"))
    unsuccessful = Q(state__in=UNSUCCESSFUL) & ~Q(Exists(reruns))
    return dict(
        runs.order_by()
        .annotate(unsuccessful=ExpressionWrapper(unsuccessful, output_field=BooleanField()))
        .values_list("scheduled_at", "unsuccessful")
    )


def _create_runs(job: Job, planned: Backfill, now: datetime, using: str) -> Backfill:
    rows = [backfill_run(job.pk, occurrence, now=now) for occurrence in planned.occurrences]
    created = despite_contention(lambda: _insert(job, rows, using), using)
    taken = len(rows) - len(created)
    return replace(planned, occurrences=tuple(created), existing_runs=planned.existing_runs + taken)


def _insert(job: Job, rows: list[Run], using: str) -> list[datetime]:
    """Insert the runs and return their occurrences.

    An occurrence that got a run from another process in the meantime keeps that run.
    """
    runs = Run.objects.using(using)
    with transaction.atomic(using=using):
        # The lock order of a claim. A claim skips a job whose cursor is locked, so the caller's
        # transaction may be long.
        if locking.lock_job(job.pk, using) is None:
            raise NotPossible(
                _("%(job)s can't be backfilled, because it has been deleted."),
                job=str(job),
                code="deleted",
            )
        _cursor_of(job, using)  # the job may have changed since the plan was made
        runs.bulk_create(rows, ignore_conflicts=True, batch_size=INSERTED_AT_ONCE)
        created = _inserted(job, rows, using)
        if created:
            record_changes([_change_of(job, created)], using)
    return created


def _inserted(job: Job, rows: list[Run], using: str) -> list[datetime]:
    """Return the occurrences of the ``rows`` that were inserted."""
    if not rows:
        return []
    between = Run.objects.using(using).filter(
        job=job.pk, scheduled_at__gte=rows[0].scheduled_at, scheduled_at__lte=rows[-1].scheduled_at
    )
    inserted = set(between.filter(trigger=Trigger.BACKFILL).values_list("pk", flat=True))
    return [row.scheduled_at for row in rows if row.pk in inserted]


def _change_of(job: Job, created: list[datetime]) -> AuditedChange:
    after = {"runs": len(created), "first": to_json(created[0]), "last": to_json(created[-1])}
    return AuditedChange(AuditAction.BACKFILL, job, after=after)
