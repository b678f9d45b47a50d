"""Decide whether a first attempt is too late to start.

The start applies the rule to the run it received. Rescue applies it to decide whether any future
start is possible.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.db.models import Q

from django_dcron.db.routing import alias_for
from django_dcron.models import Freeze, Run
from django_dcron.policies.lifecycle import FINAL, State, Trigger
from django_dcron.policies.slots import Slot
from django_dcron.runs import transitions
from django_dcron.utils.durations import write_duration


def why_too_late(run: Run, now: datetime, *, ignore_other_runs: bool = False) -> str:
    """Return why ``run`` must not start any more, or an empty string if it may.

    Backfilled runs are never too late.

    ``ignore_other_runs``: consider only reasons that don't depend on other runs, so that the
    answer also holds for every later start.
    """
    if run.attempt > 1 or run.trigger == Trigger.BACKFILL:
        return ""
    job = run.job
    if job.start_deadline is not None and now - run.due_at > job.start_deadline:
        return (
            f"not started by the start deadline, {write_duration(job.start_deadline)} after it "
            "was due"
        )
    if run.slot == Slot.RUNNING or run.limited:
        return ""  # it came in time and has waited since, for the slot or for a place in a limit
    misfire = job.misfire
    if run.trigger != Trigger.SCHEDULE or not misfire.is_late(run.due_at, now):
        return ""
    newer_due = not ignore_other_runs and _newer_due(run, now)
    ahead = 0 if ignore_other_runs else _ahead_in_backlog(run)
    if misfire.should_start(newer_due=newer_due, ahead_in_backlog=ahead):
        return ""
    freezes = Freeze.objects.using(alias_for(Freeze)).covering(job.namespace)
    if reason := freeze_reason(freezes, job.namespace, run.due_at):
        return reason
    claimed_late = misfire.is_late(run.due_at, run.claimed_at)
    cause = "no node claimed the occurrence" if claimed_late else "the run didn't start"
    return f"{cause} within {write_duration(job.misfire_grace)}; {misfire.refusal}"


def freeze_reason(freezes: Iterable[Freeze], namespace: str, due_at: datetime) -> str:
    """Return the reason of a missed occurrence if one of ``freezes`` delayed it, otherwise "".

    A freeze delays the occurrence if it is in force at ``due_at``.
    """
    for freeze in freezes:
        extent = freeze.extent
        if extent.covers(namespace) and extent.delayed(due_at):
            return f"scheduling was frozen: {freeze.reason}"
    return ""


def _newer_due(run: Run, now: datetime) -> bool:
    """Return whether a newer run is due or has started, and wasn't missed, skipped or cancelled."""
    newer = transitions.runs().filter(
        Q(due_at__lte=now) | Q(attempt__gt=1),
        job=run.job_id,
        trigger=Trigger.SCHEDULE,
        scheduled_at__gt=run.scheduled_at,
    )
    return newer.exclude(state__in=(State.MISSED, State.SKIPPED, State.CANCELLED)).exists()


def _ahead_in_backlog(run: Run) -> int:
    """Count the earlier runs that started after ``run`` fell due or may still start.

    A worker may receive ``run`` before them, and they may be waiting for the slot.
    """
    before = transitions.runs().filter(
        job=run.job_id, trigger=Trigger.SCHEDULE, scheduled_at__lt=run.scheduled_at
    )
    started_or_unfinished = before.exclude(started_at=None, state__in=FINAL).order_by(
        "-scheduled_at"
    )
    latest = started_or_unfinished.values_list("started_at", flat=True)[: run.job.catchup_limit]
    return sum(started_at is None or started_at > run.due_at for started_at in latest)
