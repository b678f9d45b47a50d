"""The rows that account for occurrences, whoever makes them: a claim, or a change of definition over what was due."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from uuid import UUID

from django_dcron.domain.jitter import offset
from django_dcron.domain.lifecycle import State
from django_dcron.domain.misfire import Span
from django_dcron.models import Run
from django_dcron.models.run import REASON_LIMIT, new_run_id
from django_dcron.models.statistics import count

INSERTED_AT_ONCE = 2000


def row_for(
    span: Span,
    *,
    job_id: int,
    jitter: timedelta,
    misfire_grace: timedelta,
    now: datetime,
    node: str,
    reason: str = "",
) -> Run:
    """The run that accounts for ``span``: pending, or missed from the start; ``reason``: if not for being late."""
    row = Run(
        id=new_run_id(),
        job_id=job_id,
        scheduled_at=span.scheduled_at,
        due_at=span.scheduled_at + offset(job_id, span.scheduled_at, jitter),
        claimed_at=now,
        missed_before=span.missed_before,
        missed_from=span.missed_from,
        node=node,
    )
    if span.missed:
        row.state, row.finished_at = State.MISSED, now
        row.reason = (reason or f"not started within {misfire_grace} of its time")[:REASON_LIMIT]
    return row


def insert(rows: list[Run], using: str) -> None:
    """Insert rows and count what they say was missed. An occurrence that has its run already keeps that one, which then
    stands for the earlier ones as well: it was cancelled ahead of its time, say, before the job was changed."""
    Run.objects.using(using).bulk_create(rows, ignore_conflicts=True, batch_size=INSERTED_AT_ONCE)
    missing = [row for row in rows if missed_by(row)]
    for displaced in _displaced(missing, using):
        kept = Run.objects.using(using).filter(job=displaced.job_id, scheduled_at=displaced.scheduled_at)
        if displaced.missed_before:
            kept.update(missed_before=displaced.missed_before, missed_from=displaced.missed_from)
        displaced.state = State.PENDING  # it is not there to be missed
    for missed, job_ids in _jobs_by_missed(missing).items():
        count(job_ids, State.MISSED, missed)


def _displaced(rows: list[Run], using: str) -> list[Run]:
    """Those of ``rows`` whose occurrence had a run already."""
    present: set[UUID] = set()
    for start in range(0, len(rows), INSERTED_AT_ONCE):
        ids = [row.pk for row in rows[start : start + INSERTED_AT_ONCE]]
        present.update(Run.objects.using(using).filter(pk__in=ids).values_list("pk", flat=True))
    return [row for row in rows if row.pk not in present]


def missed_by(row: Run) -> int:
    """How many occurrences the row says were missed."""
    return row.missed_before + (row.state == State.MISSED)


def _jobs_by_missed(rows: Iterable[Run]) -> dict[int, list[int]]:
    """After an outage there are thousands of jobs, but few numbers: as many as there are different schedules."""
    missed: Counter[int] = Counter()
    for row in rows:
        missed[row.job_id] += missed_by(row)
    jobs: defaultdict[int, list[int]] = defaultdict(list)
    for job_id, number in missed.items():
        if number:
            jobs[number].append(job_id)
    return jobs
