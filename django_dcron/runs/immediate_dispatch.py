"""Dispatch a run at once, from the process that created or woke it.

The dispatch is best effort (``dispatch.best_effort``). If it fails or is skipped, the node that
leads the job's shard dispatches the run within a tick.
"""

from __future__ import annotations

import logging
from functools import partial
from time import time_ns

from django_dcron import tracing
from django_dcron.db.now import UtcNow
from django_dcron.dispatch import Dispatcher, DueRun
from django_dcron.dispatch.best_effort import try_request
from django_dcron.models import Run
from django_dcron.runs import deliveries

logger = logging.getLogger("django_dcron.control")


def dispatch_now(run: Run) -> None:
    """Dispatch the run. Call it after the commit that created or woke the run. Never raises."""
    try_request(partial(_deliver, run), on_error=partial(_left_to_node, run))


def _deliver(run: Run, dispatcher: Dispatcher) -> None:
    if deliveries.is_run_frozen(run):
        return  # a node dispatches the run after the freeze
    job = run.job
    of_job = job.pk, job.name, job.target, job.queue, job.priority, job.timeout
    due = DueRun(run.pk, run.attempt, run.due_at, *of_job)
    began = time_ns()
    dispatcher.publish([dispatcher.prepare(due)])
    tracing.record_dispatch([due], began, time_ns())
    # The slot distinguishes a woken run from one that waits again: see ``mark_queued``.
    deliveries.mark_queued([due.key], UtcNow(), slot=run.slot)


def _left_to_node(run: Run, error: Exception) -> None:
    extra = {
        "event": "dispatch_deferred",
        "job": str(run.job),
        "run": str(run.pk),
        "attempt": run.attempt,
    }
    text = "immediate dispatch failed, a node will retry: job=%s run=%s error=%s"
    logger.warning(text, run.job, run.pk, error, extra=extra)
