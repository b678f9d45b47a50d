"""Give a job's free running slot to the run that is next.

Invariants:

- Usually, the run that has waited longest is next. In a queue (``Job.is_queueing``), an
  older run of the schedule that hasn't begun to wait comes first: a worker hasn't received it yet.
- A run that a worker would refuse as too late never gets the slot.
- Nodes send a run again when it gets the slot, because its message may be lost and other runs wait
  for it. A repeated delivery changes nothing.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q

from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.db.statements import Placeholder, Select
from django_dcron.models import Run
from django_dcron.policies.lifecycle import STARTABLE, State, Trigger
from django_dcron.policies.misfire import MisfirePolicy
from django_dcron.policies.slots import Slot
from django_dcron.runs.start_deadline import why_too_late
from django_dcron.runs.transitions import NOBODY, runs

_ANY_IN_LINE = Select(
    Run,
    lambda: (
        runs()
        .waiting_for_slot()
        .filter(job=Placeholder(Run, "job_id"))
        .order_by("due_at", "pk")
        .values_list("pk")[:1]
    ),
)
"""Building the full query takes longer than this check. Usually, no run waits."""


def oldest_in_time(run: Run, now: datetime) -> Run | None:
    """Return the job's oldest run of the schedule that is due before ``run`` and isn't too late.

    Only pending or queued runs without the slot count.
    """
    job = run.job
    older = runs().filter(
        job=run.job_id,
        state__in=STARTABLE,
        trigger=Trigger.SCHEDULE,
        slot=None,
        due_at__lt=run.due_at,
    )
    allowed = [job.start_deadline]
    if job.misfire_policy != MisfirePolicy.RUN_ALL:
        allowed.append(job.misfire_grace)
    for late in allowed:
        if late is not None:
            older = older.filter(due_at__gte=now - late)
    oldest = older.order_by("due_at", "pk").first()
    if oldest is None:
        return None
    oldest.job = job
    return None if why_too_late(oldest, now) else oldest


def wake_next(job_id: int) -> Run | None:
    """Give the slot to the run that is next, if any run waits. Returns a run to dispatch.

    Returns None if no run waits, if the slot is taken, or if the run is on the agenda of a node,
    which dispatches it. Backfilled runs don't take part (``release_backfilled``).
    """
    if not _ANY_IN_LINE.rows(job_id=job_id):
        return None
    line = runs().waiting_for_slot().filter(job=job_id)
    longest = line.order_by("due_at", "pk").select_related("job").first()
    if longest is None:
        return None
    run, job = longest, longest.job
    if run.trigger == Trigger.SCHEDULE and job.is_queueing:
        run = oldest_in_time(run, database_now(alias_for(Run))) or run
    was_on_agenda = run.state == State.PENDING
    try:
        given = give_slot(run)
    except IntegrityError:
        return None  # a newcomer has the slot and wakes the next run when it ends
    return run if given and not was_on_agenda else None


def give_slot(run: Run) -> bool:
    """Give the job's running slot to a run that hasn't started.

    A waiting or queued run becomes pending, so that a node sends it again.
    Returns False if the run has changed. Raises ``IntegrityError`` if another run has the slot.
    """
    change: dict[str, Any] = {"slot": Slot.RUNNING, "slot_number": 0}
    if run.state != State.PENDING:
        change |= {
            "state": State.PENDING,
            "node": NOBODY,
            "queued_at": None,
            "deliveries": 0,
            "reason": "",
        }
    free = Q(state=State.WAITING) | Q(state__in=STARTABLE, slot=None)
    with transaction.atomic(using=alias_for(Run)):
        if not runs().filter(free, pk=run.pk, state=run.state).update(**change):
            return False
    for name, value in change.items():
        setattr(run, name, value)
    return True
