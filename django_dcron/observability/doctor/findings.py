"""What the doctor can find: stable codes, how bad each is, and the collection that keeps a disaster readable.

Codes are for programs: one is never renamed or given another meaning. ``docs/doctor.md`` lists them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from django_dcron.domain.system_health import Severity

NAMED = 20
"""How many findings of one code are given in full; of more it is only said how many there are."""


class Code(StrEnum):
    """Each ``domain.system_health.Problem`` is one of these."""

    # The system's health.
    DATABASE_READ_ONLY = "database_read_only"
    BROKER_AWAY = "broker_away"
    NO_WORKER = "no_worker"
    QUEUE_UNSERVED = "queue_unserved"
    WORKERS_BEHIND = "workers_behind"
    RUN_UNKNOWN_TO_WORKER = "run_unknown_to_worker"
    TASK_UNKNOWN_TO_WORKER = "task_unknown_to_worker"
    EVERY_RUN_FAILS = "every_run_fails"
    JOBS_FAILING = "jobs_failing"
    JOB_PAUSED_ITSELF = "job_paused_itself"
    RUN_OVERLONG = "run_overlong"
    # Occurrences against runs.
    OCCURRENCE_MISSING = "occurrence_missing"
    OCCURRENCE_DOUBLED = "occurrence_doubled"
    RUN_OFF_SCHEDULE = "run_off_schedule"
    MISSED_MISCOUNTED = "missed_miscounted"
    STATISTICS_BEHIND = "statistics_behind"
    # Jobs and cursors.
    CURSOR_OUTDATED = "cursor_outdated"
    CURSOR_OVERDUE = "cursor_overdue"
    CURSOR_STOPPED = "cursor_stopped"
    CURSOR_WRONG = "cursor_wrong"
    QUARANTINED = "quarantined"
    NEVER_FIRES = "never_fires"
    UNKNOWN_TARGET = "unknown_target"
    NAMESPACE_UNSERVED = "namespace_unserved"
    # Runs.
    RUN_OVERDUE = "run_overdue"
    RUN_UNDELIVERED = "run_undelivered"
    RUN_STUCK = "run_stuck"
    RUN_LEFT_WAITING = "run_left_waiting"
    STATE_ILLEGAL = "state_illegal"
    FINISHED_WITHOUT_TIME = "finished_without_time"
    SLOT_HELD = "slot_held"
    ATTEMPT_OPEN = "attempt_open"
    ATTEMPTS_WRONG = "attempts_wrong"
    OUTCOME_CONTRADICTS = "outcome_contradicts"
    STARTED_EARLY = "started_early"
    # Nodes, shards and the lock.
    NO_LIVE_NODE = "no_live_node"
    NODE_DEAD = "node_dead"
    NODE_STALLED = "node_stalled"
    NODE_DEGRADED = "node_degraded"
    NODE_SKEWED = "node_skewed"
    RELEASES_DIFFER = "releases_differ"
    NAMESPACES_OVERLAP = "namespaces_overlap"
    SHARDS_UNLED = "shards_unled"
    SHARDS_DIFFER = "shards_differ"
    LEASE_ORPHANED = "lease_orphaned"
    LOCK_UNREACHABLE = "lock_unreachable"
    LOCK_UNSAFE = "lock_unsafe"


WARNINGS = frozenset(
    {
        Code.JOBS_FAILING,
        Code.JOB_PAUSED_ITSELF,
        Code.RUN_OVERLONG,
        Code.RUN_OFF_SCHEDULE,
        Code.CURSOR_OUTDATED,
        Code.NEVER_FIRES,
        Code.STARTED_EARLY,
        Code.NODE_DEAD,
        Code.NODE_DEGRADED,
        Code.NODE_SKEWED,
        Code.RELEASES_DIFFER,
        Code.NAMESPACES_OVERLAP,
        Code.SHARDS_DIFFER,
        Code.LEASE_ORPHANED,
        Code.LOCK_UNREACHABLE,
        Code.LOCK_UNSAFE,
    }
)
"""All others are errors, unless the health verdict says how severe one is at the moment."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a finding is about."""

    kind: str
    """job, run, node, namespace or lock; cluster: all of it."""
    id: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name or self.id}".strip()


CLUSTER = Subject("cluster")
LOCK = Subject("lock")


@dataclass(frozen=True, slots=True)
class Finding:
    code: Code
    subject: Subject
    message: str
    """What it means and what to do."""
    severity: Severity

    def __str__(self) -> str:
        return f"{self.subject}: {self.message}"

    def as_json(self) -> dict[str, Any]:
        return {
            "code": self.code.value,
            "severity": self.severity.value,
            "subject": {"kind": self.subject.kind, "id": self.subject.id, "name": self.subject.name},
            "message": self.message,
        }


@dataclass
class Findings:
    """Of each code the first ``named``, and the number of all."""

    named: int = NAMED
    listed: list[Finding] = field(default_factory=list)
    counts: Counter[Code] = field(default_factory=Counter)

    def add(self, code: Code, subject: Subject, message: str, severity: Severity | None = None) -> None:
        """``severity``: if it is not the code's usual one."""
        if severity is None:
            severity = Severity.WARNING if code in WARNINGS else Severity.ERROR
        self.counts[code] += 1
        if self.counts[code] <= self.named:
            self.listed.append(Finding(code, subject, message, severity))

    @property
    def more(self) -> dict[Code, int]:
        """How many of a code are counted, not listed."""
        return {code: number - self.named for code, number in self.counts.items() if number > self.named}
