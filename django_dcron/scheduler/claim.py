"""The claim: insert the runs of due occurrences and move the cursors, in one transaction.

Invariants:

- One transaction commits both the runs and the moved cursors.
- UNIQUE (job, scheduled_at) prevents a second run. An insert that conflicts is ignored, because the
  occurrence already has a run.
- Only a cursor that matches its job's current definition is claimed.
- A cursor moves from the position that was read, while its row is locked. Without row locks
  (SQLite), the whole transaction is exclusive.
- A suspended node doesn't keep its cursors locked: except on SQLite, the database ends its idle
  transaction (``tick``).
- A locked row of a job delays only the claim of this job, even if its holder is suspended.
- During a freeze, cursors in its scope stay where they are. After it, the misfire policy decides
  about their occurrences, as after an outage.
- A cursor with an invalid schedule is quarantined: its row stores the reason, it doesn't move, and
  the batch continues.
- Claiming an occurrence ahead of time only prepares it. ``due_at`` alone decides when the run is
  dispatched.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from django.db import OperationalError, connections, transaction

from django_dcron import tracing
from django_dcron.conf import settings
from django_dcron.db.bulk import fetch_rows, update_by_key
from django_dcron.db.contention import can_skip_locked_rows, is_contention, supports_no_key_update
from django_dcron.db.routing import alias_for
from django_dcron.db.statements import Placeholder, Select
from django_dcron.dispatch.base import DueRun
from django_dcron.exceptions import InvalidSchedule
from django_dcron.jobs.cursors import disable_exhausted
from django_dcron.models import Cursor, Freeze, Job, Run
from django_dcron.models.cursor import CursorQuerySet
from django_dcron.models.parsed_schedule import read_schedule
from django_dcron.policies.misfire import Misfire, MisfirePolicy, PlannedRun
from django_dcron.runs.creation import NewRun, insert_runs, missed_count, new_run
from django_dcron.runs.start_deadline import freeze_reason
from django_dcron.schedules.hashing import hash_key_of
from django_dcron.schedules.schedule import has_hash
from django_dcron.schedules.timetable import ClaimPlan, Timetable
from django_dcron.utils.sync_points import reach_sync_point

logger = logging.getLogger("django_dcron.scheduler")

CLAIMED_AT_ONCE = 2000
"""The maximum number of cursors in one transaction: large enough for throughput, small enough for
short transactions.
"""


class DueCursor(NamedTuple):
    """A due cursor and the job columns that the claim needs, in the order of ``COLUMNS``."""

    job_id: int
    next_at: datetime
    namespace: str
    name: str
    schedule: str
    timezone: str
    calendar_dates: str | None
    calendar_policy: str
    starts_at: datetime | None
    ends_at: datetime | None
    target: str
    queue: str
    priority: int | None
    timeout: timedelta | None
    jitter: timedelta
    misfire_policy: str
    misfire_grace: timedelta
    catchup_limit: int

    @property
    def hash_key(self) -> str:
        return hash_key_of(self.namespace, self.name)


COLUMNS = (
    "job_id",
    "next_at",
    "namespace",
    "name",
    "schedule",
    "timezone",
    "calendar_dates",
    "calendar_policy",
    "starts_at",
    "ends_at",
    *(
        f"job__{field}"
        for field in (
            "target",
            "queue",
            "priority",
            "timeout",
            "jitter",
            "misfire_policy",
            "misfire_grace",
            "catchup_limit",
        )
    ),
)


@dataclass
class Claim:
    """The result of one claim transaction."""

    considered: int = 0
    """The number of cursors processed. If it is below ``CLAIMED_AT_ONCE``, the tick claims no
    further batch: no other cursor was due, or locked rows were skipped.
    """
    runs: list[DueRun] = field(default_factory=list)
    missed: int = 0
    """The number of missed occurrences."""
    quarantined: int = 0


@lru_cache(maxsize=64)
def _any_due(shards: frozenset[int], of: int, namespace: str) -> Select:
    """Return the query that finds out whether there may be an occurrence to claim.

    The shards of a node seldom change, so its statements stay the same.
    """
    return Select(Cursor, lambda: _due(shards, of, namespace).values_list("pk")[:1])


@lru_cache(maxsize=64)
def _due_with_jobs(
    shards: frozenset[int], of: int, namespace: str, number: int, skips: bool, names_tables: bool
) -> Select:
    """Return the query that locks and reads up to ``number`` due cursors, with ``COLUMNS``.

    ``skips``: whether it skips locked rows. ``names_tables``: whether it names the table to lock.
    """

    def build() -> CursorQuerySet:
        due = _due(shards, of, namespace).current()
        return due.select_for_update(skip_locked=skips, of=("self",) if names_tables else ())

    return Select(Cursor, lambda: build().values_list(*COLUMNS)[:number])


def _due(shards: frozenset[int], of: int, namespace: str) -> CursorQuerySet:
    due = Cursor.objects.due(Placeholder(Cursor, "next_at")).in_shards(sorted(shards), of)
    due = due.not_frozen()
    return due.filter(namespace=namespace) if namespace else due


@tracing.trace_claim
def claim(shards: Collection[int], now: datetime, *, node: str, namespace: str = "") -> Claim:
    """Claim one batch of the occurrences in ``shards`` due within the look-ahead.

    Database errors propagate.
    """
    any_due = _any_due(frozenset(shards), settings.SHARDS, namespace)
    if not shards or not any_due.rows(next_at=now + settings.LOOK_AHEAD):
        return Claim()
    try:
        return _claim(shards, now, node, namespace, skip_locked_rows=False)
    except OperationalError as error:
        using = alias_for(Run)
        can_skip_locked = can_skip_locked_rows(using)
        if not can_skip_locked or connections[using].in_atomic_block or not is_contention(error):
            raise
    return _claim(shards, now, node, namespace, skip_locked_rows=True)


def _claim(
    shards: Collection[int], now: datetime, node: str, namespace: str, *, skip_locked_rows: bool
) -> Claim:
    using = alias_for(Run)
    horizon = now + settings.LOOK_AHEAD
    with transaction.atomic(using=using):
        batch = _Batch(now, horizon, node)
        cursors = list(_due_cursors(shards, horizon, namespace, using))
        for cursor in _without_locked_rows(cursors, using) if skip_locked_rows else cursors:
            batch.plan(cursor)
        if not batch.claim.considered:
            return batch.claim
        reach_sync_point("claim.locked")
        batch.write(using)
        reach_sync_point("claim.written")
    reach_sync_point("claim.committed")
    return batch.claim


def _due_cursors(
    shards: Collection[int], horizon: datetime, namespace: str, using: str
) -> Iterable[DueCursor]:
    due = _due_with_jobs(
        frozenset(shards),
        settings.SHARDS,
        namespace,
        CLAIMED_AT_ONCE,
        can_skip_locked_rows(using),
        connections[using].features.has_select_for_update_of,
    )
    return map(DueCursor._make, fetch_rows(due, next_at=horizon))


def _without_locked_rows(cursors: list[DueCursor], using: str) -> list[DueCursor]:
    """Return the cursors of jobs without locked rows, and lock the rows of these jobs.

    The claim writes to these rows or refers to them.
    """
    job_ids = [cursor.job_id for cursor in cursors]
    # With FOR NO KEY UPDATE, other transactions may still refer to the job.
    no_key = supports_no_key_update(using)
    jobs = Job.objects.using(using).filter(pk__in=job_ids)
    lockable = jobs.select_for_update(skip_locked=True, no_key=no_key)
    present = set(jobs.values_list("pk", flat=True))
    locked_jobs = present - set(lockable.values_list("pk", flat=True))
    return [cursor for cursor in cursors if cursor.job_id not in locked_jobs]


class _Batch:
    """The rows that one transaction writes."""

    def __init__(self, now: datetime, horizon: datetime, node: str):
        self.now = now
        self.horizon = horizon
        self.node = node
        self.claim = Claim()
        self.rows: list[NewRun] = []
        self.moved: dict[str, list[Any]] = {"job_id": [], "next_at": [], "previous_at": []}
        """The cursors to move. Every row exists and is locked."""
        self.exhausted: list[int] = []
        self.quarantined: dict[int, str] = {}
        self._plans: dict[Any, ClaimPlan] = {}
        self._freezes: list[Freeze] | None = None
        """All freezes; None until they are needed."""

    def plan(self, cursor: DueCursor) -> None:
        self.claim.considered += 1
        try:
            plan = self._plan_for(cursor)
        except InvalidSchedule as error:
            self._quarantine(cursor, str(error))
            return
        except Exception as error:
            # The error concerns only this job; the other jobs are claimed.
            extra = {"event": "schedule_failed", "job": cursor.name}
            logger.exception("schedule failed: job=%s", cursor.name, extra=extra)
            self._quarantine(cursor, f"{type(error).__name__}: {error}")
            return
        for planned in plan.planned_runs:
            self._add_run(cursor, planned)
        if plan.next_at is None:
            self.exhausted.append(cursor.job_id)
        self.moved["job_id"].append(cursor.job_id)
        self.moved["next_at"].append(plan.next_at)
        self.moved["previous_at"].append(plan.previous_at)

    def _plan_for(self, cursor: DueCursor) -> ClaimPlan:
        """Return what to claim for the job.

        Jobs with the same schedule, policies and next occurrence share the result.
        """
        key = (
            cursor.schedule,
            cursor.timezone,
            cursor.hash_key if has_hash(cursor.schedule) else "",
            cursor.calendar_dates,
            cursor.calendar_policy,
            cursor.starts_at,
            cursor.ends_at,
            cursor.next_at,
            cursor.misfire_policy,
            cursor.misfire_grace,
            cursor.catchup_limit,
        )
        plan = self._plans.get(key)
        if plan is None:
            schedule = read_schedule(
                cursor.schedule,
                cursor.timezone,
                cursor.hash_key,
                cursor.calendar_dates,
                cursor.calendar_policy,
            )
            misfire = Misfire(
                MisfirePolicy(cursor.misfire_policy), cursor.misfire_grace, cursor.catchup_limit
            )
            plan = Timetable(schedule, cursor.starts_at, cursor.ends_at).plan_claim(
                cursor.next_at,
                late_before=self.now - cursor.misfire_grace,
                horizon=self.horizon,
                misfire=misfire,
            )
            self._plans[key] = plan
        return plan

    def _add_run(self, cursor: DueCursor, planned: PlannedRun) -> None:
        row = new_run(
            planned,
            job_id=cursor.job_id,
            jitter=cursor.jitter,
            misfire_grace=cursor.misfire_grace,
            now=self.now,
            node=self.node,
            reason=self._freeze_reason(cursor, planned) if planned.missed else "",
        )
        self.rows.append(row)
        self.claim.missed += missed_count(row)
        if not planned.missed:
            self.claim.runs.append(_due_run(cursor, row.id, row.due_at))

    def _freeze_reason(self, cursor: DueCursor, missed: PlannedRun) -> str:
        """Return the reason if a freeze held back the missed occurrence."""
        if self._freezes is None:
            self._freezes = list(Freeze.objects.using(alias_for(Freeze)))
        return freeze_reason(self._freezes, cursor.namespace, missed.scheduled_at)

    def _quarantine(self, cursor: DueCursor, problem: str) -> None:
        logger.error(
            "job quarantined: job=%s error=%s",
            cursor.name,
            problem,
            extra={"event": "quarantined", "job": cursor.name},
        )
        self.claim.quarantined += 1
        self.quarantined[cursor.job_id] = problem

    def write(self, using: str) -> None:
        if self.rows:
            insert_runs(self.rows, using)
        if self.moved["job_id"]:
            update_by_key(Cursor, self.moved, using)
        if self.exhausted:
            disable_exhausted(self.exhausted, using)
        for job_id, problem in self.quarantined.items():
            Cursor.objects.using(using).filter(pk=job_id).update(problem=problem)


def _due_run(cursor: DueCursor, run_id: UUID, due_at: datetime) -> DueRun:
    job = cursor.job_id, cursor.name, cursor.target, cursor.queue, cursor.priority, cursor.timeout
    return DueRun(run_id, 1, due_at, *job)
