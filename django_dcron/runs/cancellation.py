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
from collections.abc import Callable
from functools import partial
from uuid import UUID

from django.db import transaction

from django_dcron.db.routing import alias_for
from django_dcron.dispatch.best_effort import try_request
from django_dcron.models import Attempt, Run
from django_dcron.policies.lifecycle import State
from django_dcron.runs import transitions

logger = logging.getLogger("django_dcron.runs")

listeners: list[Callable[[], None]] = []
"""Called when a running run was asked to stop, because this process may be executing the run."""


def request_cancel(run_id: UUID, reason: str) -> bool:
    """Ask a running run to stop. Returns False if it isn't running or was already asked to."""
    if not transitions.mark_cancel_requested(run_id, reason):
        return False
    transaction.on_commit(partial(_notify_worker, run_id), using=alias_for(Run))
    return True


def cancel_unstarted(run: Run, reason: str) -> bool:
    """Cancel a run that hasn't started. Returns False if it has started or ended by now."""
    if not transitions.end_unstarted(run, State.CANCELLED, reason):
        return False
    if State(run.state) is State.QUEUED:  # when it was read; a worker may have received it
        transaction.on_commit(partial(_revoke, run.pk, run.attempt), using=alias_for(Run))
    return True


def _notify_worker(run_id: UUID) -> None:
    try:
        started = (
            Attempt.objects.using(alias_for(Attempt))
            .filter(run=run_id, outcome="")
            .order_by("number")
        )
        attempt = started.last()
    except Exception as error:  # the cancel is committed, so the caller must not see an error
        _log_not_notified(run_id, error)
    else:
        if attempt is not None:
            _revoke(run_id, attempt.number, attempt.worker)
    # Last, because a listener may interrupt this thread if it executes a job.
    for listener in listeners:
        listener()


def _revoke(run_id: UUID, attempt: int, worker: str = "") -> None:
    try_request(
        lambda dispatcher: dispatcher.revoke(run_id, attempt, worker),
        on_error=lambda error: _log_not_notified(run_id, error),
    )


def _log_not_notified(run_id: UUID, error: Exception) -> None:
    logger.info(
        "worker not notified of cancellation: run=%s error=%s; the next heartbeat will notice it",
        run_id,
        error,
        extra={"event": "not_revoked", "run": str(run_id)},
    )
