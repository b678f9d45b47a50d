"""Prune finished runs in small batches, as ``policies.retention`` decides.

Invariants:

- Each batch is one transaction and follows the job's retention as stored at that moment.
- A batch locks only final runs and their attempts, and waits for no lock. If another transaction
  has locked one of them, the job is left for later.
- A run is deleted with its attempts. A rerun that is kept then refers to no run, but is still shown
  as a rerun.
- A run with an unfinished rerun is kept, even if the rerun is created during the deletion.
- Cursor and statistics don't change: no occurrence is claimed or counted again.
- Rows are read through UNIQUE (job, scheduled_at), page by page, regardless of the length of the
  history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError, OperationalError, connections
from django.db.models import Count, OuterRef, QuerySet, Subquery, Sum
from django.db.models.signals import post_delete, pre_delete

from django_dcron.conf import settings
from django_dcron.db.contention import is_contention
from django_dcron.db.errors import in_one_line
from django_dcron.db.routing import alias_for
from django_dcron.db.session_limits import brief_transaction
from django_dcron.models import Attempt, Job, LimitPlace, Run, Statistics
from django_dcron.models.job import JobQuerySet
from django_dcron.models.run import RunQuerySet
from django_dcron.models.statistics import pending_counts
from django_dcron.policies.lifecycle import FINAL, UNFINISHED, State, Trigger
from django_dcron.policies.retention import FinishedRun, HistoryBounds, Retention, select_expired
from django_dcron.runs import transitions
from django_dcron.utils.sync_points import reach_sync_point

BATCH_SIZE = 500
"""Runs per page."""
RETENTION_FIELDS = ("keep_for", "keep_failed_for", "keep_runs")
_JOB_COLUMNS = (*RETENTION_FIELDS, "deleted_at")
COLUMNS = ("pk", "scheduled_at", "state", "finished_at", "trigger", "attempt")


class DeletionBlocked(Exception):
    """A run to delete is locked or another row refers to it. Its job is left for later."""


def retention_of(job: Job) -> Retention:
    return _retention(*(getattr(job, name) for name in _JOB_COLUMNS))


def _retention(
    keep_for: Any, keep_failed_for: Any, keep_runs: int | None, deleted_at: datetime | None
) -> Retention:
    return Retention(
        settings.KEEP_FOR if keep_for is None else keep_for,
        settings.KEEP_FAILED_FOR if keep_failed_for is None else keep_failed_for,
        settings.KEEP_RUNS if keep_runs is None else keep_runs,
        keeps_latest=deleted_at is None,
    )


def candidates(jobs: JobQuerySet, now: datetime) -> list[int]:
    """Return the ``jobs`` that may have runs to delete: one query, with an index lookup per job."""
    oldest = (
        Run.objects.filter(job=OuterRef("pk")).order_by("scheduled_at").values("scheduled_at")[:1]
    )
    job_ids = []
    for job_id, oldest_at, *values in jobs.order_by("pk").values_list(
        "pk", Subquery(oldest), *_JOB_COLUMNS
    ):
        retention = _retention(*values)
        if oldest_at is None:
            continue
        if retention.keep_runs is not None or oldest_at < now - retention.age_of(State.SUCCEEDED):
            job_ids.append(job_id)
    return job_ids


def prune_runs(job_id: int, now: Callable[[], datetime], *, dry_run: bool = False) -> Iterator[int]:
    """Delete the expired runs of a job. Yields the number of deleted runs after each batch.

    The caller may pause between batches or stop. With ``dry_run``, nothing is deleted.
    Raises ``DeletionBlocked`` and the database's errors.
    """
    using = alias_for(Run)
    retention, bounds, position = None, None, None
    while (stored := _read_retention(job_id, using)) is not None:
        if stored != retention:
            retention, bounds = stored, (yield from _bounds(job_id, stored))
        if bounds is None:
            return
        at = now()
        page = _page(job_id, position, bounds.end(stored, at))
        selection = select_expired(page, stored, bounds, at)
        if selection.expired and not dry_run:
            _delete(selection.expired, using)
        yield len(selection.expired)
        considered_all = not page or selection.position == page[-1].scheduled_at
        if selection.is_done or (considered_all and len(page) < BATCH_SIZE):
            return
        position = selection.position


def _read_retention(job_id: int, using: str) -> Retention | None:
    rows = Job.with_deleted.using(using).filter(pk=job_id)
    values = rows.values_list(*_JOB_COLUMNS).first()
    return None if values is None else _retention(*values)


def _bounds(job_id: int, retention: Retention) -> Generator[int, None, HistoryBounds | None]:
    """Return the bounds, or None if the job has no finished run.

    Yields 0 after each page, so that ``prune_runs`` can pause, because the search may go far back.
    """
    runs = transitions.runs().filter(job=job_id).order_by("-scheduled_at")
    if retention.keep_runs is None:
        latest = runs.finished().values_list("scheduled_at", flat=True).first()
        return _bounds_of(retention, latest)
    finished, failed = _Latest(retention.keep_runs), _Latest(retention.keep_runs)
    page = list(runs.values_list("scheduled_at", "state")[:BATCH_SIZE])
    while page:
        for scheduled_at, state in page:
            if state in FINAL:
                finished.count(scheduled_at)
            if state == State.FAILED:
                failed.count(scheduled_at)
        if failed.oldest or len(page) < BATCH_SIZE:
            break
        yield 0
        older = runs.filter(scheduled_at__lt=page[-1][0])
        page = list(older.values_list("scheduled_at", "state")[:BATCH_SIZE])
    return _bounds_of(retention, finished.latest, finished.oldest, failed.oldest)


def _bounds_of(
    retention: Retention,
    latest: datetime | None,
    oldest: datetime | None = None,
    oldest_failed: datetime | None = None,
) -> HistoryBounds | None:
    if latest is None:
        return None
    return HistoryBounds(latest if retention.keeps_latest else None, oldest, oldest_failed)


class _Latest:
    """Counts instants, newest first. Keeps the newest one and the ``number``-th."""

    def __init__(self, number: int) -> None:
        self._missing = number
        self.latest: datetime | None = None
        self.oldest: datetime | None = None

    def count(self, at: datetime) -> None:
        self.latest = self.latest or at
        self._missing -= 1
        if not self._missing:
            self.oldest = at


def _page(job_id: int, after: datetime | None, end: datetime) -> list[FinishedRun]:
    runs = transitions.runs().filter(job=job_id, scheduled_at__lt=end).order_by("scheduled_at")
    if after is not None:
        runs = runs.filter(scheduled_at__gt=after)
    read = list(runs.values_list(*COLUMNS)[:BATCH_SIZE])
    needed = set(_unfinished_reruns([row[0] for row in read]).values_list("rerun_of", flat=True))
    return [
        FinishedRun(
            run_id,
            scheduled_at,
            state,
            finished_at or scheduled_at,
            is_backfilled=trigger == Trigger.BACKFILL,
            attempts=attempt,
            is_needed=run_id in needed,
        )
        for run_id, scheduled_at, state, finished_at, trigger, attempt in read
    ]


def _unfinished_reruns(run_ids: Collection[UUID]) -> RunQuerySet:
    return transitions.runs().filter(rerun_of__in=run_ids, state__in=UNFINISHED).order_by()


def _delete(run_ids: list[UUID], using: str) -> None:
    try:
        with brief_transaction(using, settings.LEASE):
            _delete_locked(run_ids, using)
    except IntegrityError as error:
        raise DeletionBlocked(f"a row refers to one of its runs: {in_one_line(error)}") from error
    except OperationalError as error:
        if connections[using].in_atomic_block or not is_contention(error):
            raise
        raise DeletionBlocked(in_one_line(error)) from error


def _delete_locked(run_ids: list[UUID], using: str) -> None:
    """Delete all of the runs or none. A partial batch wouldn't begin at the oldest run."""
    runs = transitions.runs().finished().filter(pk__in=run_ids)
    locked_ids = _lock(runs)
    attempts = Attempt.objects.using(using).filter(run__in=locked_ids)
    _lock(attempts)
    reach_sync_point("prune.locked")
    if _unfinished_reruns(locked_ids).exists():
        raise DeletionBlocked("one of its runs is being rerun")
    reruns = transitions.runs().filter(rerun_of__in=locked_ids).order_by()
    reruns.update(rerun_of=None, original_deleted=True)
    if not _can_delete_in_bulk():
        runs.delete()
        return
    # Django's deletion would load each row.
    attempts.order_by()._raw_delete(using)
    places = LimitPlace.objects.using(using)
    # Read without a lock: MariaDB scans this small table, and would wait for any locked place.
    if with_place := list(places.filter(run__in=locked_ids).values_list("pk", flat=True)):
        places.filter(pk__in=with_place)._raw_delete(using)
    transitions.runs().filter(pk__in=locked_ids).order_by()._raw_delete(using)


def _can_delete_in_bulk() -> bool:
    """Return whether no signal receiver and no table of the project has a part in a deletion."""
    own = {Run, Attempt, LimitPlace}
    fields = [field for model in own for field in model._meta.get_fields(include_hidden=True)]
    related = {field.related_model for field in fields if field.auto_created and not field.concrete}
    signals = (pre_delete, post_delete)
    return related <= own and not any(
        signal.has_listeners(model) for signal in signals for model in own
    )


def _lock(rows: QuerySet[Any]) -> list[Any]:
    """Lock the rows and return their keys."""
    return list(rows.select_for_update(nowait=True).order_by().values_list("pk", flat=True))


# --- the remaining history ------------------------------------------------------------------------


def oldest_kept() -> RunQuerySet:
    """Return the finished runs of the job ``OuterRef("pk")``, oldest first.

    Failed and backfilled runs are omitted. Pruning leaves no gap after the first of the others.
    """
    kept = Run.objects.filter(job=OuterRef("pk"), state__in=FINAL - {State.FAILED})
    return kept.exclude(trigger=Trigger.BACKFILL).order_by("scheduled_at")


def kept_from(job_id: int, instant: datetime, now: datetime) -> datetime | None:
    """Return the time from which on all runs are kept.

    Returns None if no run at ``instant`` can have been pruned.
    """
    using = alias_for(Run)
    oldest = Subquery(oldest_kept().using(using).values("scheduled_at")[:1])
    kept = (
        Job.objects.using(using).filter(pk=job_id).order_by().values_list(oldest, flat=True).first()
        or now
    )
    return kept if instant < kept and with_pruned_history([job_id]) else None


def with_pruned_history(job_ids: Collection[int]) -> set[int]:
    """Return the jobs whose statistics count more ended runs than their rows account for."""
    if not job_ids:
        return set()
    statistics = Statistics.objects.using(alias_for(Statistics)).filter(pk__in=job_ids)
    counted = Counter(
        {row.pk: sum(getattr(row, state.value) for state in FINAL) for row in statistics}
    )
    for job_id, pending in pending_counts(job_ids).items():
        counted[job_id] += sum(pending[state.value] for state in FINAL)
    finished = transitions.runs().finished().filter(job__in=job_ids).order_by()
    counts = finished.values("job_id").annotate(rows=Count("pk"), missed=Sum("missed_before"))
    rows = {row["job_id"]: row["rows"] + row["missed"] for row in counts}
    return {job_id for job_id, number in counted.items() if number > rows.get(job_id, 0)}
