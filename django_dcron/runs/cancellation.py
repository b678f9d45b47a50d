"""Cancel runs and notify their workers at once.

Invariants:

- The database decides: a start checks for the cancellation, and a worker reads it at its next
  heartbeat at the latest.
- Workers are notified after the commit, on a best-effort basis. The notification never fails, and
  waits for a broker no longer than one publish does.
- Only an attempt that can never start again is revoked. Workers remember revoked messages for hours
  and would drop a legitimate delivery.
- So two kinds of attempts are revoked: started attempts, because each starts only once, and the
  current attempt of a run that has ended. An unfinished run that hasn't started is never revoked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from uuid import UUID

from django.db import transaction

from django_dcron.db.routing import alias_for
from django_dcron.dispatch import Dispatcher, SupportsBulkRevocation
from django_dcron.dispatch.best_effort import try_request
from django_dcron.models import Attempt, Run
from django_dcron.policies.lifecycle import State
from django_dcron.runs import endings, transitions

logger = logging.getLogger("django_dcron.runs")

listeners: list[Callable[[], None]] = []
"""Called after a running run was asked to stop, because this process may be executing the run."""


def request_cancel(run_id: UUID, reason: str) -> bool:
    """Ask a running run to stop. Returns False if it isn't running or was asked before."""
    if not transitions.mark_cancel_requested(run_id, reason):
        return False
    transaction.on_commit(partial(notify_workers, [run_id]), using=alias_for(Run))
    return True


def cancel_unstarted(run: Run, reason: str) -> bool:
    """Cancel a run that hasn't started. Returns False if it has started or ended by now."""
    if not endings.end_unstarted(run, State.CANCELLED, reason):
        return False
    if State(run.state) is State.QUEUED:  # when it was read; a worker may have received it
        transaction.on_commit(
            partial(revoke_unstarted, [(run.pk, run.attempt)]), using=alias_for(Run)
        )
    return True


def notify_workers(run_ids: Sequence[UUID]) -> None:
    """Notify the workers of running runs that were asked to stop. Never raises."""
    try:
        started = (
            Attempt.objects.using(alias_for(Attempt))
            .filter(run__in=run_ids, outcome="")
            .order_by("number")
        )
        latest = {attempt.run_id: attempt for attempt in started}
    except Exception as error:  # the cancel is committed, so the caller must not see an error
        for run_id in run_ids:
            _log_not_notified(run_id, error)
    else:
        for run_id, attempt in latest.items():
            _try_revoke([run_id], partial(_revoke_started, attempt))
    # Last, because a listener may interrupt this thread if it executes a job.
    for listener in listeners:
        listener()


def _revoke_started(attempt: Attempt, dispatcher: Dispatcher) -> None:
    dispatcher.revoke(attempt.run_id, attempt.number, attempt.worker)


def revoke_unstarted(attempts: Sequence[tuple[UUID, int]]) -> None:
    """Make workers drop the messages of ended runs. Never raises.

    ``attempts``: the id and the current attempt of each run.
    """

    def revoke(dispatcher: Dispatcher) -> None:
        if isinstance(dispatcher, SupportsBulkRevocation):
            dispatcher.revoke_many(attempts)
            return
        for run_id, attempt in attempts:
            dispatcher.revoke(run_id, attempt)

    _try_revoke([run_id for run_id, _attempt in attempts], revoke)


def _try_revoke(run_ids: Sequence[UUID], revoke: Callable[[Dispatcher], None]) -> None:
    def on_error(error: Exception) -> None:
        for run_id in run_ids:
            _log_not_notified(run_id, error)

    try_request(revoke, on_error=on_error)


def _log_not_notified(run_id: UUID, error: Exception) -> None:
    logger.info(
        "worker not notified of cancellation: run=%s error=%s; it will notice at the start of the "
        "run or at its next heartbeat",
        run_id,
        error,
        extra={"event": "not_revoked", "run": str(run_id)},
    )
