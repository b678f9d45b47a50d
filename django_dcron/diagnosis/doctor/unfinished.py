"""Check unfinished runs: will a node or a worker process each of them?

Each query uses (state, due_at) or the slot, so that millions of finished runs cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NamedTuple

from django.db.models import Exists, OuterRef, Q

from django_dcron.diagnosis.doctor.findings import Code, Findings
from django_dcron.diagnosis.doctor.history import REPORT_BUG, run_subject
from django_dcron.diagnosis.doctor.window import Window, format_moment, runs_in_namespace
from django_dcron.diagnosis.overdue import overdue_runs, stuck_runs, takeover_time, undelivered_runs
from django_dcron.models import LimitPlace, Run
from django_dcron.models.job_states import EXHAUSTED
from django_dcron.models.run import RunQuerySet
from django_dcron.policies.health.problems import Problem
from django_dcron.policies.health.verdict import Verdict
from django_dcron.policies.lifecycle import FINAL, UNFINISHED, State, Trigger
from django_dcron.policies.slots import Slot
from django_dcron.utils.counts import number_of

MAX_FINDINGS = 10_000
"""The maximum number of findings per problem; the exact number beyond it doesn't matter."""

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


SEE_NODES = "See the findings about nodes and the logs of the nodes."


class _Texts(NamedTuple):
    """The fact and the advice of a finding."""

    fact: str
    advice: str


class _Check(NamedTuple):
    code: Code
    runs: RunQuerySet
    """The runs in trouble."""
    texts_of: Callable[[Run], _Texts]


def examine_unfinished_runs(window: Window, findings: Findings, verdict: Verdict) -> None:
    """Add findings for all unfinished runs in trouble.

    An undelivered run has the severity that the verdict gives ``WORKERS_BEHIND``.
    """
    severities = {issue.problem: issue.severity for issue in verdict.issues}
    for code, runs, texts_of in _checks(window):
        if code is Code.RUN_STUCK and verdict.facts.may_still_rescue:
            continue
        severity = severities.get(Problem.WORKERS_BEHIND) if code is Code.RUN_UNDELIVERED else None
        oldest = runs.select_related("job").only(*COLUMNS).order_by("due_at")[:MAX_FINDINGS]
        for run in oldest:
            subject = run_subject(run.pk, run.job.namespace, run.job.name, run.scheduled_at)
            fact, advice = texts_of(run)
            findings.add(code, subject, fact, severity, run.due_at, advice=advice)


def _checks(window: Window) -> Iterator[_Check]:
    runs, now = runs_in_namespace(window), window.now
    yield _Check(Code.RUN_OVERDUE, overdue_runs(runs, now), _overdue_text)
    yield _Check(Code.RUN_UNDELIVERED, undelivered_runs(runs, now), _undelivered_text)
    yield _Check(Code.RUN_STUCK, stuck_runs(runs, now), _stuck_text)
    running = Run.objects.in_slot(Slot.RUNNING, OuterRef("job_id"))
    waiting = runs.waiting().not_frozen().filter(~Exists(running), limited=False)
    left_waiting = waiting.exclude(trigger=Trigger.BACKFILL).filter(
        due_at__lt=now - takeover_time()
    )
    yield _Check(Code.RUN_LEFT_WAITING, left_waiting, _waiting_text)
    backfill = waiting.filter(trigger=Trigger.BACKFILL)
    yield _Check(
        Code.RUN_LEFT_WAITING,
        _skipped_in_backfill(backfill, now - takeover_time()),
        _waiting_backfill_text,
    )
    yield _Check(Code.RUN_LEFT_WAITING, _left_waiting_for_limit(runs, now), _waiting_limit_text)
    ended_with_slot = runs.filter(slot__isnull=False, state__in=FINAL)
    yield _Check(Code.SLOT_HELD, ended_with_slot, _slot_text)
    ended_with_place = runs.filter(limit_place__isnull=False, state__in=FINAL)
    yield _Check(Code.LIMIT_PLACE_HELD, ended_with_place, _place_text)


def _skipped_in_backfill(backfill: RunQuerySet, since: datetime) -> RunQuerySet:
    """Return the backfilled runs that could have started since ``since``.

    Their job has no other backfilled run in progress, and none of its runs has finished since then.
    """
    in_progress = Run.objects.filter(
        trigger=Trigger.BACKFILL, state__in=UNFINISHED - {State.WAITING}
    )
    idle = Q(job__statistics__last_finished_at=None) | Q(
        job__statistics__last_finished_at__lt=since
    )
    may_start = Q(job__enabled=True) | Q(job__pause_reason=EXHAUSTED)
    # A job may have been resumed only recently.
    has_waited = Q(claimed_at__lt=since, job__cursor__placed_at__lt=since)
    return backfill.filter(idle, may_start, has_waited).exclude(job__in=in_progress.values("job"))


def _left_waiting_for_limit(runs: RunQuerySet, now: datetime) -> RunQuerySet:
    """Return the runs that wait for a limit although no run has a place in it.

    Limits with an interval are left out: whether a run may start depends on the latest starts.
    """
    places = LimitPlace.objects.filter(
        limit=OuterRef("limit_place__limit"), key=OuterRef("limit_place__key")
    )
    waiting = (
        runs.waiting()
        .not_frozen()
        .filter(limited=True, limit_place__limit__interval=None, due_at__lt=now - takeover_time())
    )
    return waiting.exclude(Exists(places.exclude(number=None)))


def _overdue_text(run: Run) -> _Texts:
    where = f"on the agenda of {run.node}" if run.node else "on no agenda"
    return _Texts(
        f"Due since {format_moment(run.due_at)} but still pending, {where}.",
        "Possible causes: no node leads the job's shard, or the broker accepts no messages. "
        f"{SEE_NODES}",
    )


def _undelivered_text(run: Run) -> _Texts:
    queue = f"queue {run.job.queue!r}" if run.job.queue else "the target's queue"
    return _Texts(
        f"Dispatched at {format_moment(run.queued_at)} "
        f"({number_of(run.deliveries, 'delivery', 'deliveries')}), but no worker has started it.",
        f"Start workers for {queue}. If some run, manage.py dcron history --state running lists "
        "what keeps them busy.",
    )


def _stuck_text(run: Run) -> _Texts:
    return _Texts(
        "Running, but the last heartbeat of its worker was at "
        f"{format_moment(run.heartbeat_at)}, and no node has rescued it.",
        f"Possible causes: no node leads the job's shard, or the rescue fails. {SEE_NODES}",
    )


def _waiting_text(run: Run) -> _Texts:
    return _Texts(
        f"Waiting since {format_moment(run.due_at)}, although no other run of the job occupies "
        "the slot.",
        f"Possible causes: no node leads the job's shard, or the rescue fails. {SEE_NODES}",
    )


def _waiting_limit_text(run: Run) -> _Texts:
    return _Texts(
        f"Waiting since {format_moment(run.due_at)} for a place in a limit, although no run has "
        "one.",
        f"Possible causes: no node leads the limit's shard, or its ticks fail. {SEE_NODES}",
    )


def _waiting_backfill_text(run: Run) -> _Texts:
    return _Texts(
        f"Backfilled at {format_moment(run.claimed_at)} and still waiting, although no other "
        "run of the job is in progress.",
        f"Possible causes: no node leads the job's shard, or its ticks fail. {SEE_NODES}",
    )


def _slot_text(run: Run) -> _Texts:
    return _Texts(
        f"The run is {run.state} but still occupies the slot {run.slot!r}, so other runs of the "
        "job may be unable to start.",
        f"Set its slot to NULL and its slot_number to 0. {REPORT_BUG}",
    )


def _place_text(run: Run) -> _Texts:
    return _Texts(
        f"The run is {run.state} but still has a place in a limit, so other runs may be unable to "
        "start.",
        f"Delete its row in django_dcron_limitplace. {REPORT_BUG}",
    )
