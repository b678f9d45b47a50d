"""Snapshots of the tables, which the test reads between two transactions and compares."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django_dcron.exceptions import InvalidSchedule
from django_dcron.models import Attempt, Freeze, Job, Limit, LimitPlace, Link, Run
from django_dcron.models.statistics import pending_counts
from django_dcron.policies.freezing import FreezeExtent
from django_dcron.policies.lifecycle import FINAL, Trigger
from django_dcron.runs.chains import parse_follower_key
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.schedules.timetable import Timetable

LIMITS: dict[str, dict[str, Any]] = {
    "one": {"max_running": 1},
    "two": {"max_running": 2},
    "few": {"max_started": 2, "interval": timedelta(seconds=5)},
}
"""The limits that exist at the start, by name."""


class RunRow(NamedTuple):
    pk: UUID
    job_id: int
    scheduled_at: datetime
    trigger: str
    state: str
    attempt: int
    due_at: datetime
    slot: str | None
    slot_number: int
    missed_before: int
    missed_from: datetime | None
    cancel_requested_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    heartbeat_at: datetime | None
    deliveries: int
    reason: str
    limited: bool


class PlaceRow(NamedTuple):
    run_id: UUID
    limit_id: str
    key: str
    number: int | None


class AttemptRow(NamedTuple):
    run_id: UUID
    number: int
    token: UUID
    outcome: str
    finished_at: datetime | None


FINAL_STATES = tuple(sorted(FINAL))


class JobRow(NamedTuple):
    """A job with its cursor and its statistics."""

    pk: int
    overlap_policy: str
    pause_reason: str
    paused_until: datetime | None
    placed_at: datetime
    next_at: datetime | None
    previous_at: datetime | None
    problem: str
    enabled: bool
    namespace: str
    name: str
    schedule: str
    timezone: str
    starts_at: datetime | None
    ends_at: datetime | None
    cancelled: int
    failed: int
    missed: int
    skipped: int
    succeeded: int

    @property
    def definition(self) -> tuple[object, ...]:
        """The part of the definition that the cursor depends on."""
        return self[8:15]

    @property
    def timetable(self) -> Timetable | None:
        """The job's timetable, or None if the schedule is invalid."""
        try:
            schedule = parse_schedule(
                self.schedule, self.timezone, hash_key=f"{self.namespace}/{self.name}"
            )
        except InvalidSchedule:
            return None
        return Timetable(schedule, self.starts_at, self.ends_at)


JOB_COLUMNS = (
    *("pk", "overlap_policy", "pause_reason", "paused_until"),
    *(f"cursor__{column}" for column in JobRow._fields[4:15]),
    *(f"statistics__{state}" for state in FINAL_STATES),
)
assert JobRow._fields[15:] == FINAL_STATES


def _read_jobs() -> dict[int, JobRow]:
    """Read the jobs. Their statistics include the pending counts."""
    jobs = Job.objects.exclude(cursor=None).order_by("pk").values_list(*JOB_COLUMNS)
    rows = {row.pk: row for row in map(JobRow._make, jobs)}
    for job_id, counts in pending_counts(rows).items():
        added = {state: getattr(rows[job_id], state) + counts[state] for state in FINAL_STATES}
        rows[job_id] = rows[job_id]._replace(**added)
    return rows


@dataclass
class Rows:
    runs: dict[UUID, RunRow] = field(default_factory=dict)
    attempts: dict[tuple[UUID, int], AttemptRow] = field(default_factory=dict)
    jobs: dict[int, JobRow] = field(default_factory=dict)
    links: list[tuple[int, int, str]] = field(default_factory=list)
    """Tuples (following job, preceding job, outcome that starts the following job)."""
    followers: list[tuple[int, UUID]] = field(default_factory=list)
    """Tuples (job of a chained run, run that it follows)."""
    enabled: set[int] = field(default_factory=set)
    """Ids of enabled jobs."""
    freezes: list[FreezeExtent] = field(default_factory=list)
    places: dict[UUID, PlaceRow] = field(default_factory=dict)
    limits: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)
    """``max_running`` and ``max_started`` of each limit."""
    limit_of: dict[int, str | None] = field(default_factory=dict)
    """The limit of each job."""

    @classmethod
    def read(cls) -> Rows:
        runs = map(RunRow._make, Run.objects.order_by("pk").values_list(*RunRow._fields))
        attempts = map(
            AttemptRow._make, Attempt.objects.order_by("pk").values_list(*AttemptRow._fields)
        )
        keys = Run.objects.filter(trigger=Trigger.CHAIN).values_list("job_id", "idempotency_key")
        places = LimitPlace.objects.order_by("pk").values_list(*PlaceRow._fields)
        pairs = [(job_id, parse_follower_key(key)) for job_id, key in keys]
        return cls(
            {run.pk: run for run in runs},
            {(attempt.run_id, attempt.number): attempt for attempt in attempts},
            _read_jobs(),
            list(Link.objects.values_list("job_id", "after_id", "on")),
            [(job_id, run_id) for job_id, run_id in pairs if run_id is not None],
            set(Job.objects.enabled().values_list("pk", flat=True)),
            [freeze.extent for freeze in Freeze.objects.all()],
            {place.run_id: place for place in map(PlaceRow._make, places)},
            {row.pk: (row.max_running, row.max_started) for row in Limit.objects.all()},
            dict(Job.objects.values_list("pk", "limit_id")),
        )
