"""The runs that are not finished: is each where somebody will take care of it?

Every query goes by (state, due_at) or by slot, so that a table of millions of finished runs costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

from django.db.models import Exists, OuterRef, Q

from django_dcron.definition import EXHAUSTED
from django_dcron.domain.counts_in_words import number_of
from django_dcron.domain.lifecycle import FINAL, UNFINISHED, State, Trigger
from django_dcron.domain.system_health import Problem, Verdict
from django_dcron.models import Run
from django_dcron.models.run import RunQuerySet
from django_dcron.observability.doctor.findings import Code, Findings
from django_dcron.observability.doctor.history import BUG, about_run
from django_dcron.observability.doctor.window import Window, at, runs_of
from django_dcron.observability.overdue import overdue_runs, patience, stuck_runs, undelivered_runs

COUNTED = 10_000
"""Of more than so many in trouble it does not matter how many they are."""

COLUMNS = (
    "job__namespace",
    "job__name",
    "job__queue",
    "scheduled_at",
    "due_at",
    "claimed_at",
    "state",
    "queued_at",
    "heartbeat_at",
    "node",
    "slot",
    "deliveries",
)

Trouble = tuple[Code, RunQuerySet, Callable[[Run], str]]


def examine(window: Window, findings: Findings, verdict: Verdict) -> None:
    """A run that waits for a worker is as severe as the verdict says about the workers."""
    severities = {issue.problem: issue.severity for issue in verdict.issues}
    for code, runs, message_for in _troubles(window):
        severity = severities.get(Problem.WORKERS_BEHIND) if code is Code.RUN_UNDELIVERED else None
        oldest = runs.select_related("job").only(*COLUMNS).order_by("due_at")[:COUNTED]
        for run in oldest:
            subject = about_run(run.pk, run.job.namespace, run.job.name, run.scheduled_at)
            findings.add(code, subject, message_for(run), severity)


def _troubles(window: Window) -> Iterator[Trouble]:
    runs, now = runs_of(window), window.now
    yield Code.RUN_OVERDUE, overdue_runs(runs, now), _overdue
    yield Code.RUN_UNDELIVERED, undelivered_runs(runs, now), _undelivered
    yield Code.RUN_STUCK, stuck_runs(runs, now), _stuck
    holder = Run.objects.filter(slot=OuterRef("job_id"))  # ``overlap.slot_of``, in SQL
    waiting = runs.waiting().filter(~Exists(holder))
    line = waiting.exclude(trigger=Trigger.BACKFILL).filter(due_at__lt=now - patience())
    yield Code.RUN_LEFT_WAITING, line, _left_waiting
    backfill = waiting.filter(trigger=Trigger.BACKFILL)
    yield Code.RUN_LEFT_WAITING, _passed_over(backfill, now - patience()), _left_out
    yield Code.SLOT_HELD, runs.filter(slot__isnull=False, state__in=FINAL), _slot_held


def _passed_over(backfill: RunQuerySet, since: datetime) -> RunQuerySet:
    """Those that could have come to their turn: of their job none has been under way, and nothing has ended, ``since``."""
    under_way = Run.objects.filter(trigger=Trigger.BACKFILL, state__in=UNFINISHED - {State.WAITING})
    idle = Q(job__statistics__last_finished_at=None) | Q(job__statistics__last_finished_at__lt=since)
    able = Q(job__enabled=True) | Q(job__pause_reason=EXHAUSTED)
    waited = Q(claimed_at__lt=since, job__cursor__placed_at__lt=since)  # a job may have been resumed just now
    return backfill.filter(idle, able, waited).exclude(job__in=under_way.values("job"))


def _overdue(run: Run) -> str:
    where = f"on the agenda of {run.node}" if run.node else "on nobody's agenda"
    return (
        f"It has been due since {at(run.due_at)} and is still pending, {where}: no node leads its job's shard, or the "
        "broker takes nothing. See the findings on nodes and the nodes' logs."
    )


def _undelivered(run: Run) -> str:
    queue = f"queue {run.job.queue!r}" if run.job.queue else "its target's queue"
    return (
        f"It was handed over at {at(run.queued_at)} ({number_of(run.deliveries, 'delivery', 'deliveries')}) and no worker has started it: start "
        f"workers that consume {queue}, or see what keeps them busy."
    )


def _stuck(run: Run) -> str:
    return (
        f"It is running, but its worker was last heard of at {at(run.heartbeat_at)}, and no node has declared it lost: no "
        "node leads its job's shard, or the rescue fails. See the findings on nodes and the nodes' logs."
    )


def _left_waiting(run: Run) -> str:
    return (
        f"It has waited for its turn since {at(run.due_at)}, while no run of its job holds the slot: no node leads the "
        "job's shard, or the rescue fails. See the findings on nodes and the nodes' logs."
    )


def _left_out(run: Run) -> str:
    return (
        f"It was backfilled at {at(run.claimed_at)} and waits for its turn, while nothing of its job is under way: no node "
        "leads the job's shard, or its ticks fail. See the findings on nodes and the nodes' logs."
    )


def _slot_held(run: Run) -> str:
    return f"It is {run.state}, and still holds slot {run.slot}: other runs of its job cannot start. Set its slot to NULL. {BUG}"
