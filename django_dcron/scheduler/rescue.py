"""Rescue: runs whose holder is gone. Each case is one guarded transition; losing one to its owner is normal. One that
somebody has locked, or that upsets our own code, keeps no other waiting.

- Running with a stale heartbeat: the attempt is lost, and the retry policy says what comes next. Nobody's lock is waited for,
  as it may keep the worker's heartbeat waiting as well; one that is gone is an excuse for a while (``delayed_heartbeats``).
- Queued for too long: the broker lost it, or no worker is there. It is pending again, same attempt, and will be handed
  over once more; each delivery doubles the patience, so that workers away for hours find few copies of it. One that
  no worker would start any more, as its start deadline is over or it is late and late runs are skipped, is missed.
- Waiting while nobody holds the slot: woken. (Backfilled runs wait for their turn, which is not this module's: ``releasing``.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from uuid import UUID

from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction
from django.db.models import Exists, OuterRef, Q, Subquery

from django_dcron import transitions
from django_dcron.conclusion import lose
from django_dcron.conf import settings
from django_dcron.domain.lifecycle import State, Trigger
from django_dcron.lateness import too_late
from django_dcron.models import Attempt, Run
from django_dcron.models.database import alias_for, is_contention, leaving_for_later
from django_dcron.models.run import RunQuerySet
from django_dcron.models.statement import Select
from django_dcron.scheduler.delayed_heartbeats import DelayedHeartbeats
from django_dcron.sync_points import reach
from django_dcron.transitions import LastSign

logger = logging.getLogger("django_dcron.scheduler")

_TO_RESCUE = Select(
    Run,
    lambda: (
        Run.objects.filter(state__in=(State.RUNNING, State.QUEUED, State.WAITING))
        .order_by()
        .values_list("pk")[:1]
    ),
)
"""Whether there may be anybody: what follows takes longer to build than to find nobody."""

RESCUED_AT_ONCE = 500
DOUBLINGS = 10
"""How often the patience doubles: at most 1,024 times REDELIVER_AFTER."""


def rescue(
    shards: Collection[int], now: datetime, lease: timedelta, delayed: DelayedHeartbeats | None = None
) -> int:
    """Take up what vanished holders left in ``shards``; returns how many runs.

    ``lease``: how old the heartbeat of a running attempt may be. ``delayed``: what earlier calls have seen of locks; None for a
    call that is the only one.
    """
    reach("rescue.begun")
    if not _TO_RESCUE.rows():
        if delayed is not None:
            delayed.see(shards, (), lease)
        return 0
    return _lost(shards, now, lease, delayed) + _undelivered(shards, now) + _left_waiting(shards)


def _in(shards: Collection[int]) -> RunQuerySet:
    return transitions.runs().in_shards(shards, settings.SHARDS)


def _lost(shards: Collection[int], now: datetime, lease: timedelta, delayed: DelayedHeartbeats | None) -> int:
    try:
        locked = _locked(_silent(shards, now - lease / 2))
    except OperationalError as error:
        if delayed is not None and is_contention(error):
            delayed.see_all_locked()
        raise
    if delayed is not None:
        delayed.see(shards, locked, lease)
    attempt = Attempt.objects.filter(run=OuterRef("pk"), number=OuterRef("attempt"))
    seen = {name: Subquery(attempt.values(name)) for name in ("worker", "token")}
    lost = 0
    for run in _silent(shards, now - lease).select_related("job").annotate(**seen)[:RESCUED_AT_ONCE]:
        if run.pk in locked or (delayed is not None and delayed.excuse(run.pk, run.job_id, lease)):
            _leave(run)
        else:
            lost += _unless_hopeless(_lose, run, now)
    return lost


def _silent(shards: Collection[int], since: datetime) -> RunQuerySet:
    return _in(shards).running().filter(heartbeat_at__lt=since).order_by("heartbeat_at")


def _locked(silent: RunQuerySet) -> frozenset[UUID]:
    """Those of the runs, the longest silent ones, that somebody has locked. The database may not be able to tell."""
    using = silent.db
    run_ids = list(silent.values_list("pk", flat=True)[:RESCUED_AT_ONCE])
    features = connections[using].features
    if not run_ids or not features.has_select_for_update_skip_locked:
        return frozenset()
    lockable = (
        transitions.runs()
        .running()
        .filter(pk__in=run_ids)
        .select_for_update(skip_locked=True, no_key=features.has_select_for_no_key_update)
    )
    with transaction.atomic(using=using):
        return frozenset(run_ids).difference(lockable.values_list("pk", flat=True))


def _leave(run: Run) -> None:
    text = "the rescue of run %s of %s is left for later: a lock keeps its heartbeat waiting, or has until just now"
    logger.info(text, run.pk, run.job, extra={"event": "contention", "job": str(run.job), "run": str(run.pk)})


def _unless_hopeless(rescued: Callable[[Run, datetime], bool], run: Run, now: datetime) -> bool:
    """The others' rescue must not wait for a run that cannot be rescued now, whatever it is."""
    try:
        with leaving_for_later(f"the rescue of run {run.pk} of {run.job}", alias_for(Run)):
            return rescued(run, now)
    except (DatabaseError, InterfaceError):
        raise
    except Exception:  # this run's, or its job's
        extra = {"event": "not_rescued", "job": str(run.job), "run": str(run.pk), "attempt": run.attempt}
        logger.exception("run %s of %s cannot be rescued", run.pk, run.job, extra=extra)
    return False


def _lose(run: Run, now: datetime) -> bool:
    worker = getattr(run, "worker", None) or "its worker"
    silent = (now - run.heartbeat_at).total_seconds() if run.heartbeat_at else 0
    last_sign = LastSign(run.heartbeat_at, getattr(run, "token", None))
    return lose(run, f"{worker} gave no sign of life for {silent:.0f} s", last_sign)


def _undelivered(shards: Collection[int], now: datetime) -> int:
    # Nothing is queued before it is due: the index on (state, due_at) yields them in order, however many there are.
    queued = _in(shards).queued().filter(due_at__lt=now - settings.REDELIVER_AFTER).order_by("due_at")
    overdue = queued.filter(_overdue_deliveries(now)).select_related("job")[:RESCUED_AT_ONCE]
    again = [run for run in overdue if _unless_hopeless(_redeliver, run, now)]
    if again:
        _report(again, now)
    return len(again)


def _gave_up(run: Run, now: datetime) -> bool:
    """Whether no worker would start it any more: then none is waited for."""
    reason = too_late(run, now, whatever_else_is_due=True)
    return bool(reason) and transitions.end_unstarted(run, State.MISSED, reason, attempt=run.attempt)


def _redeliver(run: Run, now: datetime) -> bool:
    if _gave_up(run, now) or run.queued_at is None:
        return False
    return transitions.redeliver(run.pk, run.attempt, run.queued_at)


def _report(runs: list[Run], now: datetime) -> None:
    """One line, however many there are: usually they wait for the same reason."""
    oldest = runs[0]
    many = f"{len(runs)} runs wait for a worker, the oldest: " if len(runs) > 1 else ""
    logger.warning(
        "%s%s of %s UTC has waited %.0f s in %s and no worker came; handed over again. Is a worker running for it?",
        many,
        oldest.job,
        f"{oldest.scheduled_at:%H:%M:%S}",
        (now - oldest.due_at).total_seconds(),
        f"queue {oldest.job.queue}" if oldest.job.queue else "its queue",
        extra={"event": "redelivered", "job": str(oldest.job), "run": str(oldest.pk), "runs": len(runs)},
    )


def _overdue_deliveries(now: datetime) -> Q:
    """Queued for longer than the patience with its number of deliveries."""
    overdue = Q(deliveries__gt=DOUBLINGS, queued_at__lt=now - settings.REDELIVER_AFTER * 2**DOUBLINGS)
    for deliveries in range(DOUBLINGS + 1):
        patience = settings.REDELIVER_AFTER * 2 ** max(deliveries - 1, 0)
        overdue |= Q(deliveries=deliveries, queued_at__lt=now - patience)
    return overdue


def _left_waiting(shards: Collection[int]) -> int:
    holder = transitions.runs().filter(slot=OuterRef("job_id"))  # ``overlap.slot_of``, in SQL
    line = _in(shards).waiting().exclude(trigger=Trigger.BACKFILL)
    left = line.filter(~Exists(holder)).order_by().values_list("job_id", flat=True).distinct()
    woken = 0
    for job_id in list(left[:RESCUED_AT_ONCE]):
        with leaving_for_later(f"the line of job {job_id}", alias_for(Run)):
            woken += transitions.wake_next(job_id)
    return woken
