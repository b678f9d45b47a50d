"""Lateness: whether a first attempt comes too late to start. One rule for the start, which asks it of the run it was handed,
and for rescue, which asks whether any start is worth waiting for."""

from __future__ import annotations

from datetime import datetime

from django_dcron import transitions
from django_dcron.domain.lifecycle import FINAL, State, Trigger
from django_dcron.domain.overlap import slot_of
from django_dcron.models import Run


def too_late(run: Run, now: datetime, *, whatever_else_is_due: bool = False) -> str:
    """Why ``run`` must not start any more; empty if it may. A backfilled run is late by its nature.

    ``whatever_else_is_due``: only what no other run can change, so that it holds for every start to come.
    """
    if run.attempt > 1 or run.trigger == Trigger.BACKFILL:
        return ""
    job = run.job
    if job.start_deadline is not None and now - run.due_at > job.start_deadline:
        return f"not started by its start deadline, {job.start_deadline} after it was due"
    if run.slot == slot_of(run.job_id):
        return ""  # it came in time, and has waited in line since
    misfire = job.misfire
    if run.trigger != Trigger.SCHEDULE or not misfire.is_late(run.due_at, now):
        return ""
    newer_due = not whatever_else_is_due and _newer_due(run, now)
    ahead = 0 if whatever_else_is_due else _ahead_in_backlog(run)
    if misfire.should_start(newer_due=newer_due, ahead_in_backlog=ahead):
        return ""
    return f"no worker started it within {job.misfire_grace} of its time ({job.get_misfire_policy_display()})"


def _newer_due(run: Run, now: datetime) -> bool:
    newer = transitions.runs().filter(
        job=run.job_id, trigger=Trigger.SCHEDULE, scheduled_at__gt=run.scheduled_at, due_at__lte=now
    )
    return newer.exclude(state__in=(State.MISSED, State.SKIPPED, State.CANCELLED)).exists()


def _ahead_in_backlog(run: Run) -> int:
    """How many of the runs before it were still to be started when it fell due, and have been since or will be: a worker
    may take it before them, and they may stand in line."""
    before = transitions.runs().filter(
        job=run.job_id, trigger=Trigger.SCHEDULE, scheduled_at__lt=run.scheduled_at
    )
    run_or_to_run = before.exclude(started_at=None, state__in=FINAL).order_by("-scheduled_at")
    latest = run_or_to_run.values_list("started_at", flat=True)[: run.job.catchup_limit]
    return sum(started_at is None or started_at > run.due_at for started_at in latest)
