"""Cancels, and telling workers of them at once.

Invariants:

- The database is the truth: a start asks it, and a worker sees at its next heartbeat at the latest that it is to stop.
  Telling is a favour, after the commit: it never fails, and waits for a broker no longer than for one publishing.
- Revoked is only what can never start again. Workers remember what was revoked for hours and would drop a legitimate
  delivery of it. An attempt that has started is such (each starts once, and the next one is another), and whatever was
  the present attempt of a run that has ended. An unfinished run that has not started is never revoked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from uuid import UUID

from django.db import transaction

from django_dcron import transitions
from django_dcron.dispatch.favour import at_once
from django_dcron.domain.lifecycle import State
from django_dcron.models import Attempt, Run
from django_dcron.models.database import alias_for

logger = logging.getLogger("django_dcron.runs")

listeners: list[Callable[[], None]] = []
"""Called in this process whenever a running run was asked to stop: by whoever may be executing it here."""


def request_cancel(run_id: UUID, reason: str) -> bool:
    """Ask a running run to stop. False: it does not run, or was asked before."""
    if not transitions.request_cancel(run_id, reason):
        return False
    transaction.on_commit(partial(_tell_worker, run_id), using=alias_for(Run))
    return True


def cancel_unstarted(run: Run, reason: str) -> bool:
    """End a run that has not started. False: it has started or ended meanwhile."""
    if not transitions.end_unstarted(run, State.CANCELLED, reason):
        return False
    if State(run.state) is State.QUEUED:  # when it was read; a worker may hold it already
        transaction.on_commit(partial(_revoke, run.pk, run.attempt), using=alias_for(Run))
    return True


def _tell_worker(run_id: UUID) -> None:
    try:
        started = Attempt.objects.using(alias_for(Attempt)).filter(run=run_id, outcome="").order_by("number")
        attempt = started.last()
    except Exception as error:  # it was committed: whoever asked must not be told otherwise
        _left_to_heartbeat(run_id, error)
    else:
        if attempt is not None:
            _revoke(run_id, attempt.number, attempt.worker)
    for listener in listeners:  # last: it may be this very thread, a job's, that is interrupted
        listener()


def _revoke(run_id: UUID, attempt: int, worker: str = "") -> None:
    at_once(
        lambda dispatcher: dispatcher.revoke(run_id, attempt, worker),
        refused=lambda error: _left_to_heartbeat(run_id, error),
    )


def _left_to_heartbeat(run_id: UUID, error: Exception) -> None:
    logger.info(
        "the cancel of run %s is left to its worker's next heartbeat: %s",
        run_id,
        error,
        extra={"event": "not_revoked", "run": str(run_id)},
    )
