"""Handing over a run at once, by the process that made it: a favour (``dispatch.favour``). If it fails, or none is asked, the node
that leads the job's shard does it within a tick."""

from __future__ import annotations

import logging
from functools import partial
from time import time_ns

from django_dcron import tracing, transitions
from django_dcron.dispatch import Dispatcher, DueRun
from django_dcron.dispatch.favour import at_once
from django_dcron.models import Run

logger = logging.getLogger("django_dcron.control")


def hand_over(run: Run) -> None:
    """To be called after the commit that made it. Never raises."""
    at_once(partial(_deliver, run), refused=partial(_left_to_node, run))


def _deliver(run: Run, dispatcher: Dispatcher) -> None:
    job = run.job
    of_job = job.pk, job.name, job.target, job.queue, job.priority, job.timeout
    due = DueRun(run.pk, run.attempt, run.due_at, *of_job)
    began = time_ns()
    dispatcher.publish([dispatcher.prepare(due)])
    tracing.handed_over([due], began, time_ns())
    transitions.mark_queued([due.key], run.due_at, slot=None)


def _left_to_node(run: Run, error: Exception) -> None:
    extra = {"event": "left_to_node", "job": str(run.job), "run": str(run.pk), "attempt": run.attempt}
    logger.warning("%s is left to a node: %s", run, error, extra=extra)
