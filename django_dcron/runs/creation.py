"""Create the rows of runs that account for claimed or missed occurrences."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django_dcron.db.bulk import insert_new
from django_dcron.models import Run
from django_dcron.models.run import REASON_LIMIT, new_run_id
from django_dcron.models.statistics import count_ended_runs
from django_dcron.policies.jitter import jitter_delay
from django_dcron.policies.lifecycle import State, Trigger
from django_dcron.policies.misfire import PlannedRun
from django_dcron.policies.slots import Slot, backfill_number
from django_dcron.utils.batches import in_batches
from django_dcron.utils.durations import write_duration

INSERTED_AT_ONCE = 2000
WAITING_FOR_TURN = "waiting for its turn"
"""The reason of a run that waits in the queue of backfilled runs."""


@dataclass(slots=True)
class NewRun:
    """The columns of a run that differ from their defaults. The names are those of the columns."""

    id: UUID
    job_id: int
    scheduled_at: datetime
    due_at: datetime
    claimed_at: datetime
    node: str
    missed_before: int
    missed_from: datetime | None
    state: str = State.PENDING.value
    finished_at: datetime | None = None
    reason: str = ""


COLUMNS = tuple(column.name for column in fields(NewRun))


def backfill_run(job_id: int, at: datetime, *, now: datetime, **columns: Any) -> Run:
    """Return an unsaved run for ``at`` that waits in the job's queue of backfilled runs."""
    return Run(
        id=new_run_id(),
        job_id=job_id,
        scheduled_at=at,
        due_at=at,
        claimed_at=now,
        trigger=Trigger.BACKFILL,
        state=State.WAITING,
        slot=Slot.BACKFILL,
        slot_number=backfill_number(at),
        reason=WAITING_FOR_TURN,
        **columns,
    )


def new_run(
    planned: PlannedRun,
    *,
    job_id: int,
    jitter: timedelta,
    misfire_grace: timedelta,
    now: datetime,
    node: str,
    reason: str = "",
) -> NewRun:
    """Return the run for ``planned``: pending, or missed from the start.

    ``reason`` explains a missed run; by default, the run is missed because it is late.
    """
    at = planned.scheduled_at
    row = NewRun(
        id=new_run_id(),
        job_id=job_id,
        scheduled_at=at,
        due_at=at + jitter_delay(job_id, at, jitter) if jitter else at,
        claimed_at=now,
        node=node,
        missed_before=planned.missed_before,
        missed_from=planned.missed_from,
    )
    if planned.missed:
        row.state, row.finished_at = State.MISSED.value, now
        reason = reason or f"not started within {write_duration(misfire_grace)}"
        row.reason = reason[:REASON_LIMIT]
    return row


def insert_runs(rows: list[NewRun], using: str) -> None:
    """Insert the runs and count their missed occurrences in the statistics.

    An occurrence may already have a run, for example one that was cancelled ahead of time before
    the job was changed. That run stays and takes over the count of earlier missed occurrences.
    """
    inserted = 0
    for batch in in_batches(rows, INSERTED_AT_ONCE):
        columns = {name: [getattr(row, name) for row in batch] for name in COLUMNS}
        inserted += insert_new(Run, columns, using)
    with_missed = [row for row in rows if missed_count(row)]
    for displaced in _not_inserted(with_missed, using) if inserted < len(rows) else ():
        kept = Run.objects.using(using).filter(
            job=displaced.job_id, scheduled_at=displaced.scheduled_at
        )
        if displaced.missed_before:
            kept.update(missed_before=displaced.missed_before, missed_from=displaced.missed_from)
        # Another run has its occurrence, so it isn't missed.
        displaced.state = State.PENDING.value
    for missed, job_ids in _jobs_by_missed(with_missed).items():
        count_ended_runs(job_ids, State.MISSED, missed)


def _not_inserted(rows: list[NewRun], using: str) -> list[NewRun]:
    """Return the ``rows`` that weren't inserted because their occurrence already had a run."""
    present: set[UUID] = set()
    for batch in in_batches(rows, INSERTED_AT_ONCE):
        ids = [row.id for row in batch]
        present.update(Run.objects.using(using).filter(pk__in=ids).values_list("pk", flat=True))
    return [row for row in rows if row.id not in present]


def missed_count(row: NewRun) -> int:
    """Return how many missed occurrences the row accounts for."""
    return row.missed_before + (row.state == State.MISSED)


def _jobs_by_missed(rows: Iterable[NewRun]) -> dict[int, list[int]]:
    """Group job ids by their number of missed occurrences.

    After an outage, thousands of jobs share a few numbers, so that a few UPDATEs count them all.
    """
    missed: Counter[int] = Counter()
    for row in rows:
        missed[row.job_id] += missed_count(row)
    jobs: defaultdict[int, list[int]] = defaultdict(list)
    for job_id, number in missed.items():
        if number:
            jobs[number].append(job_id)
    return jobs
