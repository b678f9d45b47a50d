"""Refusal: end the runs that can't be dispatched as failed.

Invariants:

- A locked run is left for a later call, without waiting for the lock.
- An error while one run is ended doesn't stop the others. A lock on another row stops them, because
  they may need the same row, such as the incident of their failure.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

from django.db import OperationalError

from django_dcron.db.contention import is_contention, isolating_errors
from django_dcron.db.routing import alias_for
from django_dcron.models import Run
from django_dcron.policies.lifecycle import State
from django_dcron.runs import deliveries, endings, transitions
from django_dcron.scheduler.agenda import Key
from django_dcron.scheduler.publishing import RefusedDispatch
from django_dcron.utils.batches import in_batches

logger = logging.getLogger("django_dcron.scheduler")

ENDED_AT_ONCE = 500
"""The maximum number of runs that one query checks for locks."""


def end_refused(refused: Sequence[RefusedDispatch]) -> set[Key]:
    """End the runs as failed. Returns the runs that are left for a later call.

    A run that another process has deleted or changed isn't left.
    """
    left: set[Key] = set()
    for batch in in_batches(refused, ENDED_AT_ONCE):
        left |= _end_batch(batch)
    return left


def _end_batch(batch: Sequence[RefusedDispatch]) -> set[Key]:
    """End the unlocked runs. Returns the runs that are left."""
    free: set[UUID] = set()
    with (
        isolating_errors("refuse", alias_for(Run)),
        deliveries.lock_unlocked([run.run_id for run, _ in batch]) as unlocked,
    ):
        free = unlocked  # Each run is ended in its own transaction, after this one.
    left, is_blocked = {refusal.run.key for refusal in batch}, False
    for refusal in batch:
        if refusal.run.run_id not in free:
            continue
        with isolating_errors("refuse", alias_for(Run)):
            try:
                _end(refusal)
                left.discard(refusal.run.key)
            except OperationalError as error:
                is_blocked = is_contention(error)
                raise
        if is_blocked:
            break
    return left


def _end(refusal: RefusedDispatch) -> None:
    run, reason = refusal
    row = transitions.runs().select_related("job").filter(pk=run.run_id).first()
    if row is None or not endings.end_unstarted(row, State.FAILED, reason, attempt=run.attempt):
        return
    facts = {"job": run.job_name, "run": str(run.run_id), "attempt": run.attempt}
    logger.error(
        "run not dispatched: job=%s run=%s attempt=%d reason=%s",
        *facts.values(),
        reason,
        extra={"event": "undeliverable", **facts},
    )
