"""Dispatch a run at once, from the process that created or woke it.

The dispatch is best effort (``dispatch.best_effort``). If it fails or is skipped, the node that
leads the job's shard dispatches the run within a tick.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from time import time_ns

from django_dcron import tracing
from django_dcron.db.now import UtcNow
from django_dcron.dispatch import Dispatcher, DueRun
from django_dcron.dispatch.best_effort import try_request
from django_dcron.models import Run
from django_dcron.runs import deliveries
from django_dcron.utils.batches import in_batches

logger = logging.getLogger("django_dcron.control")


def dispatch_now(run: Run) -> None:
    """Dispatch the run. Call it after the commit that created or woke the run. Never raises."""
    dispatch_all_now([run])


def dispatch_all_now(runs: Sequence[Run]) -> None:
    """Dispatch the runs in batches as large as the dispatcher accepts. See ``dispatch_now``."""

    def on_error(error: Exception) -> None:
        for run in runs:
            _log_deferred(run, error)

    try_request(partial(_deliver, runs), on_error=on_error)


def _deliver(runs: Sequence[Run], dispatcher: Dispatcher) -> None:
    # A node dispatches the frozen runs after the freeze.
    ready = [run for run in runs if not deliveries.is_run_frozen(run)]
    for batch in in_batches(ready, dispatcher.batch_size):
        _deliver_batch(batch, dispatcher)


def _deliver_batch(runs: Sequence[Run], dispatcher: Dispatcher) -> None:
    due = [_due_run(run) for run in runs]
    began = time_ns()
    dispatcher.publish([dispatcher.prepare(due_run) for due_run in due])
    tracing.record_dispatch(due, began, time_ns())
    # Since the dispatch, a run may have waited for its slot or its limit, and been woken. Its row
    # then has another ``slot`` or ``limited``, and ``mark_queued`` must not mark it.
    by_place: dict[tuple[str | None, bool], list[DueRun]] = {}
    for run, due_run in zip(runs, due, strict=True):
        by_place.setdefault((run.slot, run.limited), []).append(due_run)
    for (slot, limited), delivered in by_place.items():
        keys = [due_run.key for due_run in delivered]
        deliveries.mark_queued(keys, UtcNow(), slot=slot, limited=limited)


def _due_run(run: Run) -> DueRun:
    job = run.job
    return DueRun(
        run.pk,
        run.attempt,
        run.due_at,
        job.pk,
        job.name,
        job.target,
        job.queue,
        job.priority,
        job.timeout,
    )


def _log_deferred(run: Run, error: Exception) -> None:
    extra = {
        "event": "dispatch_deferred",
        "job": str(run.job),
        "run": str(run.pk),
        "attempt": run.attempt,
    }
    text = "immediate dispatch failed, a node will retry: job=%s run=%s error=%s"
    logger.warning(text, run.job, run.pk, error, extra=extra)
