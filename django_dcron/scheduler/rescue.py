"""Rescue: recover runs whose worker, message or slot holder is gone.

- A running run with a stale heartbeat: the attempt is lost, and the retry policy decides.
- A run that has been queued for too long: the broker lost the message, or there is no worker. The
  run becomes pending again with the same attempt. Each delivery doubles the limit, so that workers
  that return after hours find few duplicate messages.
- A queued run that is too late to start: it ends as missed. Either its start deadline has passed,
  or its misfire policy skips late runs.
- A waiting run whose slot is free: it is woken, unless it is backfilled (``backfill_release``) or
  waits for a limit (``limit_lines``).

Invariants:

- Each case is one guarded transition. If the worker is faster, the transition changes nothing.
- A queued run that a freeze holds back is left alone until the end of the freeze.
- A locked run, or one whose rescue fails with an error, doesn't delay the others.
- The rescue never waits for a lock on a running run, because the lock may also block the heartbeat.
  After the lock is released, the run isn't declared lost for half a lease
  (``delayed_heartbeats``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.db import OperationalError, transaction
from django.db.models import Exists, OuterRef, Subquery

from django_dcron.conf import settings
from django_dcron.db.contention import (
    can_skip_locked_rows,
    is_contention,
    isolating_errors,
    skipping_if_locked,
    supports_no_key_update,
)
from django_dcron.db.routing import alias_for
from django_dcron.db.statements import Select
from django_dcron.dispatch.queues import queue_name
from django_dcron.jobs.attempt_end import declare_lost
from django_dcron.models import Attempt, Run
from django_dcron.models.run import RunQuerySet
from django_dcron.policies.lifecycle import State
from django_dcron.policies.slots import Slot
from django_dcron.runs import deliveries, endings, slot_queue, transitions
from django_dcron.runs.endings import LastHeartbeat
from django_dcron.runs.start_deadline import why_too_late
from django_dcron.scheduler.delayed_heartbeats import DelayedHeartbeats
from django_dcron.utils.sync_points import reach_sync_point

logger = logging.getLogger("django_dcron.scheduler")

_ANY_CANDIDATE = Select(
    Run,
    lambda: (
        Run.objects.filter(state__in=(State.RUNNING, State.QUEUED, State.WAITING))
        .order_by()
        .values_list("pk")[:1]
    ),
)
"""Checks whether any run may need a rescue. Building the queries below takes longer than this."""

CAUSES = "the worker may have been killed, restarted or suspended, or lost its database"
"""What may have happened to a worker that sends no heartbeats."""
RESCUED_AT_ONCE = 500
"""The maximum number of rows that each query returns."""


def rescue(
    shards: Collection[int],
    now: datetime,
    lease: timedelta,
    delayed: DelayedHeartbeats | None = None,
) -> int:
    """Recover the runs in ``shards`` whose holders are gone, and return their number.

    ``lease``: the maximum age of a running attempt's heartbeat. ``delayed``: the runs that earlier
    calls found locked; None for a single call.
    """
    reach_sync_point("rescue.begun")
    if not _ANY_CANDIDATE.rows():
        if delayed is not None:
            delayed.record_locked(shards, (), lease)
        return 0
    return (
        _recover_lost_attempts(shards, now, lease, delayed)
        + _redeliver_overdue(shards, now)
        + _wake_waiting_runs(shards)
    )


def _runs_in(shards: Collection[int]) -> RunQuerySet:
    return transitions.runs().in_shards(shards, settings.SHARDS)


def _recover_lost_attempts(
    shards: Collection[int], now: datetime, lease: timedelta, delayed: DelayedHeartbeats | None
) -> int:
    try:
        locked = _locked_run_ids(_silent_runs(shards, now - lease / 2))
    except OperationalError as error:
        if delayed is not None and is_contention(error):
            delayed.record_all_locked()
        raise
    if delayed is not None:
        delayed.record_locked(shards, locked, lease)
    attempt = Attempt.objects.filter(run=OuterRef("pk"), number=OuterRef("attempt"))
    columns = {name: Subquery(attempt.values(name)) for name in ("worker", "token")}
    lost = 0
    for run in (
        _silent_runs(shards, now - lease)
        .select_related("job")
        .annotate(**columns)[:RESCUED_AT_ONCE]
    ):
        if run.pk in locked or (
            delayed is not None and delayed.may_be_delayed(run.pk, run.job_id, lease)
        ):
            _log_postponed(run)
        else:
            reach_sync_point("rescue.silent")
            lost += _rescue_one(_declare_lost, run, now)
    return lost


def _silent_runs(shards: Collection[int], since: datetime) -> RunQuerySet:
    return _runs_in(shards).running().filter(heartbeat_at__lt=since).order_by("heartbeat_at")


def _locked_run_ids(silent: RunQuerySet) -> frozenset[UUID]:
    """Return which of the runs that have been silent for longest are locked.

    Returns an empty set if the database can't skip locked rows.
    """
    using = silent.db
    run_ids = list(silent.values_list("pk", flat=True)[:RESCUED_AT_ONCE])
    if not run_ids or not can_skip_locked_rows(using):
        return frozenset()
    lockable = (
        transitions.runs()
        .running()
        .filter(pk__in=run_ids)
        .select_for_update(skip_locked=True, no_key=supports_no_key_update(using))
    )
    with transaction.atomic(using=using):
        return frozenset(run_ids).difference(lockable.values_list("pk", flat=True))


def _log_postponed(run: Run) -> None:
    text = "rescue postponed: job=%s run=%s reason=a lock may have delayed the heartbeat"
    logger.info(
        text,
        run.job,
        run.pk,
        extra={"event": "contention", "job": str(run.job), "run": str(run.pk)},
    )


def _rescue_one(work: Callable[[Run, datetime], bool], run: Run, now: datetime) -> bool:
    """Call ``work`` for one run. Its error doesn't stop the rescue of the other runs."""
    step = f"rescue run {run.pk} of {run.job}"
    done = False
    with isolating_errors(step, alias_for(Run), log_error=partial(_log_failure, run)):
        done = work(run, now)
    return done  # noqa: RET504 - an error skips the assignment


def _log_failure(run: Run, error: Exception) -> None:
    extra = {
        "event": "not_rescued",
        "job": str(run.job),
        "run": str(run.pk),
        "attempt": run.attempt,
    }
    logger.error("rescue failed: job=%s run=%s", run.job, run.pk, exc_info=error, extra=extra)


def _declare_lost(run: Any, now: datetime) -> bool:
    """Declare the run's attempt lost.

    ``run`` is annotated with the ``worker`` and ``token`` of its attempt. Both are None if the
    attempt has no row.
    """
    silent = (now - run.heartbeat_at).total_seconds()
    worker = run.worker or "the worker"
    reason = f"no heartbeat from {worker} for {silent:.0f} s; {CAUSES}"
    return declare_lost(run, reason, LastHeartbeat(run.heartbeat_at, run.token))


def _redeliver_overdue(shards: Collection[int], now: datetime) -> int:
    # No run is queued before it is due, so the index on (state, due_at) yields these runs in order.
    queued = (
        _runs_in(shards)
        .queued()
        .filter(due_at__lt=now - settings.REDELIVER_AFTER)
        .order_by("due_at")
    )
    overdue = (
        queued.filter(deliveries.overdue(now)).not_frozen().select_related("job")[:RESCUED_AT_ONCE]
    )
    with deliveries.lock_unlocked([run.pk for run in overdue]) as free:
        pass  # Only to skip locked runs: each would be waited for separately.
    redelivered = [run for run in overdue if run.pk in free and _rescue_one(_redeliver, run, now)]
    if redelivered:
        _report_redelivered(redelivered, now)
    return len(redelivered)


def _end_if_too_late(run: Run, now: datetime) -> bool:
    """End the run as missed if it is too late to start. Return whether it was ended."""
    reason = why_too_late(run, now, ignore_other_runs=True)
    return bool(reason) and endings.end_unstarted(run, State.MISSED, reason, attempt=run.attempt)


def _redeliver(run: Run, now: datetime) -> bool:
    return not _end_if_too_late(run, now) and deliveries.redeliver(
        run.pk, run.attempt, run.queued_at
    )


def _report_redelivered(runs: list[Run], now: datetime) -> None:
    """Log one line for all runs, because they usually wait for the same reason."""
    oldest = runs[0]
    logger.warning(
        "runs redelivered: runs=%d first=%s queue=%s waited=%.0fs reason=no worker started them, "
        "or the broker lost their messages; check that workers of this queue are running and can "
        "use the database",
        len(runs),
        oldest.job,
        queue_name(oldest.job.target, oldest.job.queue) or "-",
        (now - oldest.due_at).total_seconds(),
        extra={
            "event": "redelivered",
            "job": str(oldest.job),
            "run": str(oldest.pk),
            "runs": len(runs),
        },
    )


def _wake_waiting_runs(shards: Collection[int]) -> int:
    slot_holder = transitions.runs().in_slot(Slot.RUNNING, OuterRef("job_id"))
    waiting = _runs_in(shards).waiting_for_slot()
    unblocked = waiting.filter(~Exists(slot_holder)).order_by()
    job_ids = unblocked.values_list("job_id", flat=True).distinct()
    woken = 0
    for job_id in list(job_ids[:RESCUED_AT_ONCE]):
        with skipping_if_locked(f"wake the next run of job {job_id}", alias_for(Run)):
            woken += slot_queue.wake_next(job_id) is not None
    return woken
